"""Subscriptions: lease, settle, schedule, request and reply."""
