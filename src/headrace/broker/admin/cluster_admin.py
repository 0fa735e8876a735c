"""ApiVersions and DescribeLogDirs: what this broker speaks, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.admin.features import FEATURES_EPOCH, finalized_features, supported_features
from headrace.broker.handlers import UNKNOWN_VERSION
from headrace.broker.request_context import RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import UnsupportedVersion
from headrace.runtime.disk import Disk
from headrace.wire.apis import Api
from headrace.wire.messages.metadata import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


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
            supported_features=supported_features(context.version),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=finalized_features(),
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
