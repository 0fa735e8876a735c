"""A broker as the others see it while it is up. Pure."""

from __future__ import annotations

import msgspec


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch` is the number of this start of the broker. One that `is_draining` is about to go, and leads only what
    nobody else can."""

    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None
    is_draining: bool = False


class ControllerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides at present; `epoch` grows with every election."""

    node_id: int
    epoch: int
