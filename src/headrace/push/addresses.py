"""Which addresses may be pushed to: those of the public internet, unless private ones are allowed.

Whoever sets a webhook makes this process connect to a place of their choice. So it is the socket that is guarded: what
is looked at is the address of this very connection, however it was written, and whatever the name meant before.
Addresses that hold another one (IPv4 in IPv6) are judged by it.

No error tells an address: whoever set the webhook reads it, and would learn what internal names resolve to.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_PLATFORM_SERVICES = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
"""Counted as public, but answered by the cloud platform itself: Azure's WireServer, Oracle's metadata service."""
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
    if any(found in network for network in _PLATFORM_SERVICES):
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def public_socket(address_info: tuple[Any, ...]) -> socket.socket:
    """A socket for an entry of getaddrinfo; raises `ForbiddenAddress` if that is not public."""
    family, kind, protocol, _, address = address_info
    if not is_public(address[0]):
        raise ForbiddenAddress(
            "the receiver is not a public address, and private ones are allowed only by --push-private"
        )
    return socket.socket(family, kind, protocol)
