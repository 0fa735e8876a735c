"""Decisions about replicas: the leader's view of its followers."""
