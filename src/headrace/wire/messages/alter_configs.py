"""AlterConfigs (33): replace all settings of a resource; what is not named falls back to its default.

v2 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire


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
