"""The connections of one client: at most one per broker and lane, dialled when it is first needed.

A broker answers the requests of a connection one after another, so what may wait there for long (Fetch, JoinGroup) goes
by a lane of its own.
"""

from __future__ import annotations

import asyncio

from headrace.client.address import Address
from headrace.client.transport import Dialer, Transport


class Transports:
    def __init__(self, dialer: Dialer, dial_timeout_seconds: float) -> None:
        self._dialer = dialer
        self._dial_timeout_seconds = dial_timeout_seconds
        self._open: dict[tuple[Address, str], Transport] = {}
        self._dialling: dict[tuple[Address, str], asyncio.Lock] = {}

    async def dialled(self, address: Address, lane: str = "") -> Transport:
        """The open transport to this address; dials if there is none, and raises Unreachable if nobody answers."""
        key = (address, lane)
        async with self._dialling.setdefault(key, asyncio.Lock()):
            transport = self._open.get(key)
            if transport is None or transport.closed:
                transport = await self._dialer.dial(*address, self._dial_timeout_seconds)
                self._open[key] = transport
            return transport

    def any_open(self, but: Address | None = None) -> Address | None:
        """To whom a transport is open already that has no lane of its own."""
        for (address, lane), transport in self._open.items():
            if not lane and not transport.closed and address != but:
                return address
        return None

    def close_lane(self, lane: str) -> None:
        """Close the connections of a lane that nobody uses any more."""
        for key in [key for key in self._open if key[1] == lane]:
            self._open.pop(key).close()

    def close(self) -> None:
        """Close every connection; calls under way end with ConnectionLost."""
        for transport in self._open.values():
            transport.close()
        self._open.clear()
