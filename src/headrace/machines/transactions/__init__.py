"""Transactions: of a coordinator, of a partition, and joint commits."""
