"""Fuzzing of everything that parses foreign bytes: decoders, batches, compressions, recovery, HTTP, REST."""
