"""Produce: check batches, append them, and answer when they are committed."""
