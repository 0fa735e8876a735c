"""Push: leases handed to receivers, never faster than they settle; webhooks are its own, streams are the doors'."""
