"""Queues: subscriptions of a topic, their leases, acknowledgements and dead letters."""
