"""How the broker's configuration becomes the limits of its Kafka listener."""

from __future__ import annotations

from math import inf

from headrace.model.broker_configs import BrokerConfig
from headrace.server.main import _limits

_DESCRIPTORS = 1 << 20


def test_an_idle_time_in_milliseconds_becomes_seconds() -> None:
    assert _limits(BrokerConfig(connections_max_idle_ms=90_000), _DESCRIPTORS).idle_seconds == 90


def test_an_idle_time_of_minus_one_never_closes_a_connection() -> None:
    assert _limits(BrokerConfig(connections_max_idle_ms=-1), _DESCRIPTORS).idle_seconds == inf
