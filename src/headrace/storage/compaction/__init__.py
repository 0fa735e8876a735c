"""Compaction: choose logs, clean their segments, swap the result in."""
