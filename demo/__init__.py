"""The whole story on one machine in under three minutes: `make demo`."""
