"""DescribeConfigs (32): all settings of topics (resource type 2) and brokers (4), with their sources.

v3 adds type and documentation, v4 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire


@part
class DescribeConfigsResource:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: list[str] | None = wire(array(STRING), nullable=1)


@message(versions=(1, 4), flexible_since=4)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = wire(array(DescribeConfigsResource))
    include_synonyms: bool = wire(BOOL)
    include_documentation: bool = wire(BOOL, since=3)


@part
class DescribeConfigsSynonym:
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=1, default=None)
    source: int = wire(INT8)


@part
class DescribeConfigsResourceResult:
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=1, default=None)
    read_only: bool = wire(BOOL)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL)
    synonyms: list[DescribeConfigsSynonym] = wire(array(DescribeConfigsSynonym))
    config_type: int = wire(INT8, since=3)
    documentation: str | None = wire(STRING, since=3, nullable=3, default=None)


@part
class DescribeConfigsResult:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=1, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[DescribeConfigsResourceResult] = wire(array(DescribeConfigsResourceResult))


@message(versions=(1, 4), flexible_since=4)
class DescribeConfigsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[DescribeConfigsResult] = wire(array(DescribeConfigsResult))
