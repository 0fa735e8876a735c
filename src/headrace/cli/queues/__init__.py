"""Commands for queues: subscriptions and their messages, dead letters, delayed messages."""
