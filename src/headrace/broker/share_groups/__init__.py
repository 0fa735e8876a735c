"""Kafka's share groups (KIP-932): their members, and the requests by which these take messages."""
