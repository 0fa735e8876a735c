"""UpdateFeatures (57): change the finalized level of a feature.

v1 can ask without changing (`validate_only`) and says how a level may change (`upgrade_type`). v2 has one error for
the whole request instead of one per feature.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, array, message, part, wire


@part
class FeatureUpdate:
    feature: str = wire(STRING)
    max_version_level: int = wire(INT16)
    allow_downgrade: bool = wire(BOOL, until=0)
    upgrade_type: int = wire(INT8, since=1, default=1)


@message(versions=(0, 2), flexible_since=0)
class UpdateFeaturesRequest:
    timeout_ms: int = wire(INT32, default=60_000)
    feature_updates: list[FeatureUpdate] = wire(array(FeatureUpdate))
    validate_only: bool = wire(BOOL, since=1)


@part
class UpdatableFeatureResult:
    feature: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 2), flexible_since=0)
class UpdateFeaturesResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    results: list[UpdatableFeatureResult] = wire(array(UpdatableFeatureResult), until=1)
