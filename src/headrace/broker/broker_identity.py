"""The identity of this broker in metadata: ids and advertised address."""

from __future__ import annotations

import msgspec


class BrokerIdentity(msgspec.Struct):
    """`host` and `port` are the advertised address, which is known once the listener is bound."""

    node_id: int
    cluster_id: str
    epoch: int
    rack: str | None = None
    host: str = ""
    port: int = 0
