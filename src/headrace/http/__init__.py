"""An HTTP/1.1 server on the broker's event loop: messages, routes, listener and connections, independent of topics."""
