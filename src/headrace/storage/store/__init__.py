"""A data folder: its logs, flushed offsets, free space, stray logs and topic files."""
