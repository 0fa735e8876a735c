"""The other brokers of the cluster, asked by the wire protocol that their clients use.

One call is one attempt. A broker answers what comes by one connection in its order, so what may wait there for long
goes by a lane of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.model.errors import RequestTimedOut
from headrace.runtime.inline_start import switch_to_task

if TYPE_CHECKING:
    from headrace.client.connections.transport import Dialer, TransportPool

_DIAL_SECONDS = 5.0


class Peers:
    """`make_dialer` is called before the first call: a broker that is alone never needs one."""

    def __init__(self, make_dialer: Callable[[], Dialer], address_of: Callable[[int], tuple[str, int] | None]) -> None:
        self._make_dialer = make_dialer
        self._address_of = address_of
        self._transports: TransportPool | None = None

    async def call(
        self,
        node_id: int,
        request: Any,
        *,
        timeout_seconds: float,
        connection_key: str = "",
        version_max: int | None = None,
    ) -> Any:
        """One request to another broker; its answer, whatever codes it holds. Connecting has as much time as the
        answer."""
        # The client's modules are not worth their time at a start.
        from headrace.client.connections.address import Address
        from headrace.client.connections.transport import TransportPool, api_of_request, choose_version
        from headrace.client.errors import Unreachable

        await switch_to_task()
        address = self._address_of(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not up")
        if self._transports is None:
            self._transports = TransportPool(self._make_dialer(), _DIAL_SECONDS)
        try:
            async with asyncio.timeout(timeout_seconds):
                transport = await self._transports.get_or_dial(Address(*address), connection_key)
        except TimeoutError:
            raise RequestTimedOut(f"broker {node_id} did not respond within {timeout_seconds:g} s") from None
        api = api_of_request(request)
        version = choose_version(transport, api, version_max)
        return await transport.call(api.key, version, request, timeout_seconds)

    def close(self) -> None:
        """Close every connection; calls under way end with ConnectionLost."""
        if self._transports is not None:
            self._transports.close()
