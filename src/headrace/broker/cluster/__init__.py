"""This broker as one of a cluster: membership, what the registry says, and the other brokers."""
