"""Kafka's wire format: message schemas, the compiled codec, record batches. Pure."""
