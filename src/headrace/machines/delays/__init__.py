"""Delayed messages: what waits, when it is due, and how it repeats."""
