"""Push the messages of subscriptions to webhooks, never faster than the receivers settle them."""
