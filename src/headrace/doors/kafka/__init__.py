"""The Kafka door: TCP listener and connections."""
