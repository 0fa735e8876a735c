"""Which addresses may be pushed to: those of the public internet, unless private ones are allowed.

Whoever sets a webhook makes this process connect to a place of their choice. So it is the socket that is guarded: what
is looked at is the address of this very connection, however it was written, and whatever the name meant before.
Addresses that hold another one (IPv4 in IPv6) are judged by it.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_IPV4_MASK = 0xFFFFFFFF


class ForbiddenAddress(OSError):
    """The receiver's address is private, and private ones are not allowed."""


def is_public(address: str) -> bool:
    """Whether this is an address, and one of the public internet."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _TRANSLATED:
            inner = IPv4Address(int(found) & _IPV4_MASK)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def public_socket(address_info: tuple[Any, ...]) -> socket.socket:
    """A socket for an entry of getaddrinfo; raises `ForbiddenAddress` if that is not public."""
    family, kind, protocol, _, address = address_info
    if not is_public(address[0]):
        raise ForbiddenAddress(
            f"{address[0]} is not a public address, and private ones are allowed only by --push-private"
        )
    return socket.socket(family, kind, protocol)
