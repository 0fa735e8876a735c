"""Kafka's protocol over TCP: listener and connections."""
