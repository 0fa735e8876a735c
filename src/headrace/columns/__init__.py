"""Arrow columns out of Kafka's record batches, and record batches out of columns, without a step of Python per record."""
