"""Reading: consumer, read-ahead, and what Fetch responses hold."""
