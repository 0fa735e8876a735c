"""Fetch and ListOffsets: read what is committed."""
