"""Requests of administrators and clients about topics, configurations and the cluster."""
