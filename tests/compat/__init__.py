"""Tests of the broker with third-party Kafka clients."""
