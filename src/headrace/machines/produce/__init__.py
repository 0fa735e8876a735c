"""Decisions about producers: sequence numbers, and windows of dedup ids."""
