"""The optional C library. Everything that it does is also implemented in Python."""
