"""Spark looks for modules of such a name, and takes the data source in them as known."""
