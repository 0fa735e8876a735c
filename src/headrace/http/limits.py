"""The limits of an HTTP listener, in total and per client."""

from __future__ import annotations

from collections import Counter

import msgspec

BODY_BYTES_MAX = 10 << 20
"""The default body limit of an application."""


class HttpLimits(msgspec.Struct, frozen=True):
    """A body must arrive at a rate of `body_bytes_per_second_min`. It may fall behind that rate by at most
    `body_seconds`, however fast it was before. `bodies_per_host_bytes_max` limits all bodies of one host together. A
    client that reads nothing of its response for `unread_seconds` is disconnected. A connection above `connections_max`
    or `connections_per_host_max` uses one of `connections_reserved`, which serve health pages only.
    `message_bytes_max` and `ping_seconds` apply to WebSockets."""

    head_bytes_max: int = 32 << 10
    headers_max: int = 100
    url_bytes_max: int = 8 << 10
    bodies_bytes_max: int = 128 << 20
    bodies_per_host_bytes_max: int = 64 << 20
    message_bytes_max: int = 1 << 20
    connections_max: int = 10_000  # in addition to the reserved ones
    connections_per_host_max: int = 5_000
    connections_reserved: int = 1_000
    pending_responses_max: int = 16
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    body_bytes_per_second_min: int = 4096
    idle_seconds: float = 75.0
    unread_seconds: float = 30.0
    linger_seconds: float = 2.0
    ping_seconds: float = 20.0
    sweep_seconds: float = 1.0


_SHARE_PER_RESERVED = 4  # at most a quarter of the descriptors is reserved for health probes


def limits_of_connections(share: int) -> HttpLimits:
    """Return the limits for a number of file descriptors, including those of the reserved connections. One host gets at
    most half of the other connections, so that it cannot lock out other hosts."""
    reserved = max(min(share // _SHARE_PER_RESERVED, HttpLimits().connections_reserved), 1)
    served = max(share - reserved, 1)
    return HttpLimits(
        connections_max=served, connections_per_host_max=max(served // 2, 1), connections_reserved=reserved
    )


class BodyBudget:
    """The budget for the bodies of all requests in progress. `taken` never exceeds `size_bytes`, and the part of one
    host never exceeds `per_host_bytes`."""

    __slots__ = ("_by_host", "per_host_bytes", "size_bytes", "taken")

    def __init__(self, size_bytes: int, per_host_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.per_host_bytes = per_host_bytes
        self.taken = 0
        self._by_host: Counter[str] = Counter()

    def reserve(self, host: str, size_bytes: int) -> bool:
        if self.taken + size_bytes > self.size_bytes or self._by_host[host] + size_bytes > self.per_host_bytes:
            return False
        self.taken += size_bytes
        self._by_host[host] += size_bytes
        return True

    def release(self, host: str, size_bytes: int) -> None:
        if not size_bytes:
            return
        self.taken -= size_bytes
        self._by_host[host] -= size_bytes
        assert self.taken >= 0
        assert self._by_host[host] >= 0
        if not self._by_host[host]:
            del self._by_host[host]
