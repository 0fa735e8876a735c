"""HTTP/1.1 on the broker's loop: messages, routes, listener and connections. It knows nothing of topics."""
