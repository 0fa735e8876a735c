"""ApiVersions (18): what this broker speaks; the first request of every connection.

v3 is flexible, with the client's name and our features; its response header stays version 0, so that a
client can read the answer to a version that the broker does not know. v4 allows features whose minimum is
0.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 4), flexible_since=3)
class ApiVersionsRequest:
    client_software_name: str = wire(STRING, since=3)
    client_software_version: str = wire(STRING, since=3)


@part
class ApiVersion:
    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@part
class SupportedFeatureKey:
    name: str = wire(STRING)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@part
class FinalizedFeatureKey:
    name: str = wire(STRING)
    max_version_level: int = wire(INT16)
    min_version_level: int = wire(INT16)


@message(versions=(0, 4), flexible_since=3)
class ApiVersionsResponse:
    error_code: int = wire(INT16)
    api_keys: list[ApiVersion] = wire(array(ApiVersion))
    throttle_time_ms: int = wire(INT32, since=1)
    supported_features: list[SupportedFeatureKey] = wire(array(SupportedFeatureKey), since=3, tag=0)
    finalized_features_epoch: int = wire(INT64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = wire(array(FinalizedFeatureKey), since=3, tag=2)
    zk_migration_ready: bool = wire(BOOL, since=3, tag=3)
