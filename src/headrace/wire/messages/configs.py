"""Configurations of topics, brokers, groups and subscriptions."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire

# DescribeConfigs (32): return the configs of topics (resource type 2) and brokers (4), with their sources. v3 adds
# the type and the documentation, v4 is flexible.


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


# AlterConfigs (33): replace all configs of a resource; omitted ones are reset to their defaults. v2 is flexible.


@part
class AlterableConfig:
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=0, default=None)


@part
class AlterConfigsResource:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[AlterableConfig] = wire(array(AlterableConfig))


@message(versions=(0, 2), flexible_since=2)
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = wire(array(AlterConfigsResource))
    validate_only: bool = wire(BOOL)


@part
class AlterConfigsResourceResponse:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@message(versions=(0, 2), flexible_since=2)
class AlterConfigsResponse:
    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse))


# IncrementalAlterConfigs (44): set (0), delete (1), append to (2) or subtract from (3) individual configs. v1 is
# flexible.


@part
class IncrementalAlterableConfig:
    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(STRING, nullable=0, default=None)


@part
class IncrementalAlterConfigsResource:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[IncrementalAlterableConfig] = wire(array(IncrementalAlterableConfig))


@message(versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalAlterConfigsResource] = wire(array(IncrementalAlterConfigsResource))
    validate_only: bool = wire(BOOL)


@message(versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse))


# ListConfigResources (74): list the resources that have configs. v0 returns client metrics only. v1 selects by type;
# an empty list selects all types.


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
