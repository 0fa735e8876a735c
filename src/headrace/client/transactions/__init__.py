"""Transactions, alone and as joint commits."""
