"""The composition root: configuration in, running process out."""
