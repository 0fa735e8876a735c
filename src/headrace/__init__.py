"""Headrace: one write-ahead log that serves streams and queues."""

__version__ = "0.1.0"
