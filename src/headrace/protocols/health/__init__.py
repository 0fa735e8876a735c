"""Health and metrics: whether the process lives, whether it serves."""
