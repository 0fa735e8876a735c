"""Partitions, coordinators and the request handlers."""
