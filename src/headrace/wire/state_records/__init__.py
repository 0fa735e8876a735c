"""The records of internal topics, most of them in Kafka's own format."""
