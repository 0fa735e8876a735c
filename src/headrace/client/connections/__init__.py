"""Connections to brokers: addresses, frames, TCP, one transport per broker."""
