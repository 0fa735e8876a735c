"""The composition root: build and run a broker, a gateway or ZooKeeper from its configuration."""
