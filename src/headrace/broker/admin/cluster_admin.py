"""Requests about the cluster: ApiVersions, UpdateFeatures and DescribeLogDirs.

Every feature is finalized at the highest level that this release supports, from the first start of a cluster: there is
no older format to stay compatible with. An update to the current level succeeds and changes nothing; any other is
rejected, and then no feature of the request is updated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.broker.handlers import UNKNOWN_VERSION, RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import InvalidUpdateVersion, UnsupportedVersion
from headrace.runtime.disk import Disk
from headrace.wire.apis import Api
from headrace.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureUpdate,
    FinalizedFeatureKey,
    SupportedFeatureKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.wire.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
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


async def update_features(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    for update in request.feature_updates:
        _check_update(update)
    response = UpdateFeaturesResponse()
    if context.version <= _PER_FEATURE_UNTIL:
        response.results = [UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates]
    return response


def _check_update(update: FeatureUpdate) -> None:
    rejected = (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {update.max_version_level} for feature {update.feature}."
    )
    feature = FEATURES.get(update.feature)
    if feature is None:
        raise InvalidUpdateVersion(f"{rejected} This cluster does not support this feature.")
    if update.max_version_level > feature.level:
        raise InvalidUpdateVersion(
            f"{rejected} This cluster only supports versions {feature.min_level}-{feature.level}"
        )
    if update.max_version_level < feature.level:
        raise InvalidUpdateVersion(f"{rejected} This release cannot lower a feature; it stays at {feature.level}.")


class ClusterAdminRequests:
    def __init__(self, catalogue: Catalogue, disk: Disk, folder: str, node_id: int) -> None:
        self._catalogue = catalogue
        self._disk = disk
        self._folder = folder
        self._node_id = node_id
        self._api_keys: list[ApiVersion] = []

    def advertise(self, apis: Iterable[Api]) -> None:
        self._api_keys = [
            ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in sorted(apis, key=lambda api: api.key)
        ]

    async def api_versions(self, _request: ApiVersionsRequest | None, context: RequestContext) -> ApiVersionsResponse:
        """A version that we do not know is answered in version 0, so that the client can choose one that we do."""
        error_code = UnsupportedVersion.code if context.version == UNKNOWN_VERSION else 0
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=self._api_keys,
            supported_features=[
                SupportedFeatureKey(name=name, min_version=feature.min_level, max_version=feature.level)
                for name, feature in FEATURES.items()
                if feature.min_level > 0 or context.version >= _ZERO_MINIMUM_SINCE
            ],
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=feature.level, min_version_level=feature.level)
                for name, feature in FEATURES.items()
            ],
        )

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, _context: RequestContext
    ) -> DescribeLogDirsResponse:
        result = DescribeLogDirsResult(
            log_dir=self._folder,
            total_bytes=self._disk.total_bytes(self._folder),
            usable_bytes=self._disk.free_bytes(self._folder),
            is_cordoned=self._node_id in self._catalogue.drained,  # the same to Kafka: no new replica comes here
        )
        wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        for topic in self._catalogue:
            if wanted is not None and topic.name not in wanted:
                continue
            held = [
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
                for partition in topic.replicas.values()
                if wanted is None or partition.index in wanted[topic.name]
            ]
            result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=held))
        return DescribeLogDirsResponse(results=[result])
