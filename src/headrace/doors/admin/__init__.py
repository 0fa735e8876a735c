"""The admin door: health and metrics by HTTP."""
