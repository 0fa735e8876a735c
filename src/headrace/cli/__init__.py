"""The headrace command, one module per noun."""
