"""The async client on the wire protocol."""
