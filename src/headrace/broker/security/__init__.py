"""Access tokens, and what clients may do."""
