"""Arrow columns out of Kafka's record batches and back, without a step of Python per record."""
