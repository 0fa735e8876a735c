"""What a listener grants to all its clients together, and to each of them."""

from __future__ import annotations

import msgspec

BODY_BYTES_MAX = 10 << 20
"""For an application that has no reason for another limit."""


class HttpLimits(msgspec.Struct, frozen=True):
    """A body must bring `body_bytes_per_second_min` after the first `body_seconds`. A client that takes nothing of its
    answer for `unread_seconds` is cut. `message_bytes_max` and `ping_seconds` are for WebSockets."""

    head_bytes_max: int = 32 << 10
    headers_max: int = 100
    url_bytes_max: int = 8 << 10
    bodies_bytes_max: int = 128 << 20
    message_bytes_max: int = 1 << 20
    connections_max: int = 10_000
    connections_per_host_max: int = 10_000
    answers_owed_max: int = 16
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    body_bytes_per_second_min: int = 4096
    idle_seconds: float = 75.0
    unread_seconds: float = 30.0
    linger_seconds: float = 2.0
    ping_seconds: float = 20.0
    sweep_seconds: float = 1.0


class BodyBudget:
    """The bytes of all bodies that are being read or answered. `taken` never exceeds `size_bytes`."""

    __slots__ = ("size_bytes", "taken")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken = 0

    def take(self, size_bytes: int) -> bool:
        if self.taken + size_bytes > self.size_bytes:
            return False
        self.taken += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.taken -= size_bytes
        assert self.taken >= 0
