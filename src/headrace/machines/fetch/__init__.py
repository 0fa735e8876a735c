"""Fetch sessions."""
