"""Segments: one file of batches each, with sparse indexes."""
