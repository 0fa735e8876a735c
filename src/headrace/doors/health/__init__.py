"""The health door: whether the process lives, whether it serves, and its metrics."""
