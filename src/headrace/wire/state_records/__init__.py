"""Records of internal topics, most of them in Kafka's format."""
