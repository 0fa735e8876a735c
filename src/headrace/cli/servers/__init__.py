"""Commands that run a server in the foreground: serve, gateway, zookeeper."""
