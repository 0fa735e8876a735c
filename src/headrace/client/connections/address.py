"""Parse addresses: `host`, `host:port`, `[::1]:9092`, and comma-separated lists of them."""

from __future__ import annotations

from typing import NamedTuple

PORT_DEFAULT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """Parse one address; raises ValueError with a message for the user."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write an IPv6 address as [::1]:9092")
        port_text = rest[1:]
    elif text.count(":") > 1:
        host, port_text = text, ""
    else:
        host, _, port_text = text.partition(":")
    if not host:
        raise ValueError(f"{text!r} names no host; write HOST:PORT")
    if not port_text:
        return Address(host, port_default)
    if not (port_text.isascii() and port_text.isdigit() and 0 <= int(port_text) <= 65535):
        raise ValueError(f"{port_text!r} is not a port; write HOST:PORT with a number up to 65535")
    return Address(host, int(port_text))


def parse_addresses(text: str) -> list[Address]:
    """Parse a comma-separated list of at least one address."""
    found = [parse_address(piece) for piece in text.split(",") if piece.strip()]
    if not found:
        raise ValueError("no address given; write HOST:PORT")
    return found
