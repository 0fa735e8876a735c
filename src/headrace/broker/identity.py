"""Who this broker is to its clients: the names and the address that metadata tells them."""

from __future__ import annotations

import msgspec


class BrokerIdentity(msgspec.Struct):
    """`host` and `port` are what clients connect to next; they are known once the door listens."""

    node_id: int
    cluster_id: str
    epoch: int
    rack: str | None = None
    host: str = ""
    port: int = 0
