"""Tests that speak to the broker through other people's Kafka clients."""
