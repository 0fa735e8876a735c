"""The features that clients and Kafka's tools ask for, and UpdateFeatures.

Every feature is finalized at the highest level that this release supports, from the first start of a cluster: there is
no older format to stay compatible with. An update to the level in force succeeds and changes nothing; any other is
rejected, and then no feature of the request is updated.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.broker.request_context import RequestContext
from headrace.model.errors import HeadraceError, InvalidUpdateVersion
from headrace.wire.messages.metadata import (
    FeatureUpdate,
    FinalizedFeatureKey,
    SupportedFeatureKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class Feature(NamedTuple):
    min_level: int
    level: int


FEATURES: Final = {
    "eligible.leader.replicas.version": Feature(0, 1),
    "group.version": Feature(0, 1),  # the consumer group protocol of KIP-848
    "metadata.version": Feature(7, 30),  # 3.3-IV3 to 4.3-IV0, the release whose API versions are served
    "share.version": Feature(0, 1),
    "transaction.version": Feature(0, 2),  # KIP-890
}
FEATURES_EPOCH: Final = 1  # the finalized levels never change
_ZERO_MINIMUM_SINCE: Final = 4  # of ApiVersions: older clients reject a minimum of 0
_PER_FEATURE_UNTIL: Final = 1  # of UpdateFeatures: later versions have one error for the request


def supported_features(api_versions_version: int) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(name=name, min_version=feature.min_level, max_version=feature.level)
        for name, feature in FEATURES.items()
        if feature.min_level > 0 or api_versions_version >= _ZERO_MINIMUM_SINCE
    ]


def finalized_features() -> list[FinalizedFeatureKey]:
    return [
        FinalizedFeatureKey(name=name, max_version_level=feature.level, min_version_level=feature.level)
        for name, feature in FEATURES.items()
    ]


async def update_features(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    try:
        for update in request.feature_updates:
            _check_update(update)
    except HeadraceError as error:
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    response = UpdateFeaturesResponse()
    if context.version <= _PER_FEATURE_UNTIL:
        response.results = [UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates]
    return response


def _check_update(update: FeatureUpdate) -> None:
    refused = f"Invalid update version {update.max_version_level} for feature {update.feature}."
    feature = FEATURES.get(update.feature)
    if feature is None:
        raise InvalidUpdateVersion(f"{refused} This cluster does not support this feature.")
    if update.max_version_level > feature.level:
        raise InvalidUpdateVersion(f"{refused} This cluster only supports versions {feature.min_level}-{feature.level}")
    if update.max_version_level < feature.level:
        raise InvalidUpdateVersion(f"{refused} This release cannot lower a feature; it stays at {feature.level}.")
