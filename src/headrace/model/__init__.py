"""Ids, names, configs and errors. Pure: no I/O, no clock."""
