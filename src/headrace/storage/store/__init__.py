"""A data folder: its logs, group commit, free space, and logs that the registry does not know."""
