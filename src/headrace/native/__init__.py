"""What is compiled: a plain C library, loaded where it was built; everything it does is also done in Python."""
