"""ListConfigResources (74): what has configs, by type.

v0 knows client metrics only, v1 selects by type; none asked for means all.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire

CLIENT_METRICS = 16


@message(versions=(0, 1), flexible_since=0)
class ListConfigResourcesRequest:
    resource_types: list[int] = wire(array(INT8), since=1)


@part
class ConfigResource:
    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, since=1, default=CLIENT_METRICS)


@message(versions=(0, 1), flexible_since=0)
class ListConfigResourcesResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    config_resources: list[ConfigResource] = wire(array(ConfigResource))
