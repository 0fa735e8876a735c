"""Log files, connections and health probes together fit into the descriptors of a process."""

from __future__ import annotations

import pytest

from headrace.http.limits import HttpLimits, limits_of_connections
from headrace.model.broker_configs import BrokerConfig
from headrace.server.serve import _DESCRIPTORS_PER_FILE, _http_limits, _limits

OWN_MIN = 32
"""What a broker has open before the first client comes: the standard streams, its loop, its listeners, its registry."""


@pytest.mark.parametrize("descriptors", [256, 1024, 4096, 65_536, 1 << 20])
def test_connections_and_files_of_a_broker_fit_into_its_descriptors(descriptors: int) -> None:
    http, kafka = _http_limits(descriptors), _limits(BrokerConfig(max_connections=(1 << 31) - 1), descriptors)
    files = descriptors // _DESCRIPTORS_PER_FILE
    used = files + kafka.connections_max + http.connections_max + http.connections_reserved
    assert used + OWN_MIN <= descriptors
    assert http.connections_per_host_max <= http.connections_max // 2


@pytest.mark.parametrize("share", [1, 2, 4, 128, 512, 20_000])
def test_the_connections_for_health_probes_are_part_of_the_share(share: int) -> None:
    limits = limits_of_connections(share)
    assert limits.connections_max >= 1
    assert limits.connections_per_host_max >= 1
    assert 1 <= limits.connections_reserved <= HttpLimits().connections_reserved
    assert limits.connections_max + limits.connections_reserved <= max(share, 2)


def test_with_enough_descriptors_http_has_its_default_connections() -> None:
    default, limits = HttpLimits(), _http_limits(1 << 20)
    assert limits.connections_max == default.connections_max
    assert limits.connections_per_host_max == default.connections_per_host_max
    assert limits.connections_reserved == default.connections_reserved
