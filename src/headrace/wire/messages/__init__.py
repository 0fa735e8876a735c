"""Requests and responses by API family, in all supported versions."""
