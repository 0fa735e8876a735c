"""IncrementalAlterConfigs (44): set (0), delete (1), append (2) or subtract (3) single settings.

v1 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire


@part
class AlterableConfig:
    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(STRING, nullable=0, default=None)


@part
class AlterConfigsResource:
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[AlterableConfig] = wire(array(AlterableConfig))


@message(versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = wire(array(AlterConfigsResource))
    validate_only: bool = wire(BOOL)


@part
class AlterConfigsResourceResponse:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@message(versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse))
