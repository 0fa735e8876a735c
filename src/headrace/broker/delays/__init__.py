"""Delayed messages: released into their topic when they are due, exactly once."""
