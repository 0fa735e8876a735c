"""Replicas: follow leaders, and keep the in-sync set of the partitions that are led."""
