"""The registration of a live broker and of the controller in the registry. Pure."""

from __future__ import annotations

import msgspec


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A live broker. `epoch` identifies this start of the broker. A draining broker is about to shut down: it leads
    only partitions that no other broker can lead."""

    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None
    is_draining: bool = False


class ControllerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The current controller; `epoch` increases with every election."""

    node_id: int
    epoch: int
