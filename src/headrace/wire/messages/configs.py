"""Configurations of topics, brokers, groups and subscriptions."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, STRING, ApiMessage, Part, array, wire

# DescribeConfigs (32): return the configs of topics (resource type 2) and brokers (4), with their sources. v3 adds
# the type and the documentation, v4 is flexible.


class DescribeConfigsResource(Part):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: list[str] | None = array(STRING, nullable=1)


class DescribeConfigsRequest(ApiMessage, versions=(1, 4), flexible_since=4):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = wire(BOOL)
    include_documentation: bool = wire(BOOL, since=3)


class DescribeConfigsSynonym(Part):
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=1, default=None)
    source: int = wire(INT8)


class DescribeConfigsResourceResult(Part):
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=1, default=None)
    read_only: bool = wire(BOOL)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL)
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = wire(INT8, since=3)
    documentation: str | None = wire(STRING, since=3, nullable=3, default=None)


class DescribeConfigsResult(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=1, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(ApiMessage, versions=(1, 4), flexible_since=4):
    throttle_time_ms: int = wire(INT32)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


# AlterConfigs (33): replace all configs of a resource; omitted ones are reset to their defaults. v2 is flexible.


class AlterableConfig(Part):
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=0, default=None)


class AlterConfigsResource(Part):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(ApiMessage, versions=(0, 2), flexible_since=2):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = wire(BOOL)


class AlterConfigsResourceResponse(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


class AlterConfigsResponse(ApiMessage, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


# IncrementalAlterConfigs (44): set (0), delete (1), append to (2) or subtract from (3) individual configs. v1 is
# flexible.


class IncrementalAlterableConfig(Part):
    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(STRING, nullable=0, default=None)


class IncrementalAlterConfigsResource(Part):
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


class IncrementalAlterConfigsRequest(ApiMessage, versions=(0, 1), flexible_since=1):
    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = wire(BOOL)


class IncrementalAlterConfigsResponse(ApiMessage, versions=(0, 1), flexible_since=1):
    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


# ListConfigResources (74): list the resources that have configs. v0 returns client metrics only. v1 selects by type;
# an empty list selects all types.


CLIENT_METRICS = 16


class ListConfigResourcesRequest(ApiMessage, versions=(0, 1), flexible_since=0):
    resource_types: list[int] = array(INT8, since=1)


class ConfigResource(Part):
    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, since=1, default=CLIENT_METRICS)


class ListConfigResourcesResponse(ApiMessage, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    config_resources: list[ConfigResource] = array(ConfigResource)
