"""Bytes that nobody meant well: decoders, batches, compressions, recovery."""
