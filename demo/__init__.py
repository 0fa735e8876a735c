"""A demonstration of Headrace on one machine in under three minutes: `make demo`."""
