"""Convert Kafka record batches to Arrow columns and back, without executing Python per record."""
