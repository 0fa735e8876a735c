"""The REST door: topics, messages and subscriptions over HTTP, as the seeds have it."""
