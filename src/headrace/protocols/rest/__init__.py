"""The REST API: topics, messages and subscriptions over HTTP."""
