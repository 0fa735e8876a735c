"""Membership in consumer groups, and committed offsets."""
