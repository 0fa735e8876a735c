"""One partition's log: append, read, recover, truncate, retain."""
