"""ApiVersions, InitProducerId and DescribeLogDirs: what this broker speaks, gives out and holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.handlers import UNKNOWN_VERSION
from headrace.model.errors import CoordinatorNotAvailable, HeadraceError, InvalidRequest, UnsupportedVersion
from headrace.runtime.disk import Disk
from headrace.wire.apis import Api
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class ClusterAdmin:
    def __init__(
        self, catalogue: Catalogue, disk: Disk, folder: str, next_producer_id: Callable[[], Awaitable[int]]
    ) -> None:
        self._catalogue = catalogue
        self._disk = disk
        self._folder = folder
        self._next_producer_id = next_producer_id
        self._api_keys: list[ApiVersion] = []

    def advertise(self, apis: Iterable[Api]) -> None:
        self._api_keys = [
            ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in sorted(apis, key=lambda api: api.key)
        ]

    async def api_versions(self, _request: ApiVersionsRequest | None, context: RequestContext) -> ApiVersionsResponse:
        """A version that we do not know is answered in version 0, so that the client can choose one that we do."""
        error_code = UnsupportedVersion.code if context.version == UNKNOWN_VERSION else 0
        return ApiVersionsResponse(error_code=error_code, api_keys=self._api_keys)

    async def init_producer_id(
        self, request: InitProducerIdRequest, _context: RequestContext
    ) -> InitProducerIdResponse:
        """Every idempotent producer gets an id of its own, with epoch 0; a lost one is not asked back for."""
        if request.transactional_id == "" or (request.producer_id < 0) != (request.producer_epoch < 0):
            return InitProducerIdResponse(error_code=InvalidRequest.code, producer_epoch=-1)
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=UnsupportedVersion.code, producer_epoch=-1)
        try:
            return InitProducerIdResponse(producer_id=await self._next_producer_id(), producer_epoch=0)
        except HeadraceError:
            return InitProducerIdResponse(error_code=CoordinatorNotAvailable.code, producer_epoch=-1)

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, _context: RequestContext
    ) -> DescribeLogDirsResponse:
        result = DescribeLogDirsResult(
            log_dir=self._folder,
            total_bytes=self._disk.total_bytes(self._folder),
            usable_bytes=self._disk.free_bytes(self._folder),
        )
        wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        for topic in self._catalogue:
            if wanted is not None and topic.name not in wanted:
                continue
            held = [
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
                for partition in topic.partitions
                if wanted is None or partition.index in wanted[topic.name]
            ]
            result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=held))
        return DescribeLogDirsResponse(results=[result])
