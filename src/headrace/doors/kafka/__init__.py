"""The Kafka protocol: TCP listener and connections."""
