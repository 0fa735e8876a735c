"""ListOffsets and OffsetForLeaderEpoch: look up the offset of a timestamp, or the end offset of an epoch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.fetch.fetched_partition import READ_COMMITTED, check_leader_epoch
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import NotLeader, OffsetNotAvailable, UnsupportedVersion
from headrace.wire.messages.fetch import (
    LeaderEpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_NEVER = 1 << 15
_SPECIAL_SINCE = {
    _LATEST: 0,
    _EARLIEST: 0,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}


class ListOffsetsHandler:
    def __init__(self, catalogue: Catalogue, session_expired: Callable[[], bool]) -> None:
        self._catalogue = catalogue
        self._session_expired = session_expired

    async def handle(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        response = ListOffsetsResponse()
        for topic in request.topics:
            topic_result = ListOffsetsTopicResponse(name=topic.name)
            for requested in topic.partitions:
                result = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
                with ReportErrors(result):
                    result = await self._find(topic.name, requested, request.isolation_level, context.version)
                topic_result.partitions.append(result)
            response.topics.append(topic_result)
        return response

    async def _find(
        self, topic: str, requested: ListOffsetsPartition, isolation_level: int, version: int
    ) -> ListOffsetsPartitionResponse:
        partition = self._catalogue.partition(topic, requested.partition_index)
        partition.ensure_readable()
        check_leader_epoch(partition, requested.current_leader_epoch)
        if requested.timestamp < 0 and version < _SPECIAL_SINCE.get(requested.timestamp, _NEVER):
            raise UnsupportedVersion(f"timestamp {requested.timestamp} is not supported in version {version}")
        result = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
        await _find_offset(partition, requested.timestamp, isolation_level, result)
        if self._session_expired():
            raise NotLeader("the registry session of this broker has expired; it may no longer be the leader; retry")
        return result

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            topic_result = OffsetForLeaderTopicResult(topic=topic.topic)
            for requested in topic.partitions:
                result = LeaderEpochEndOffset(partition=requested.partition)
                with ReportErrors(result):
                    partition = self._catalogue.partition(topic.topic, requested.partition)
                    check_leader_epoch(partition, requested.current_leader_epoch)
                    result.leader_epoch, result.end_offset = _epoch_end_offset(partition, requested.leader_epoch)
                topic_result.partitions.append(result)
            response.topics.append(topic_result)
        return response


async def _find_offset(
    partition: Partition, timestamp: int, isolation_level: int, result: ListOffsetsPartitionResponse
) -> None:
    """Fill in the result; without a match, it keeps the initial offset -1 and timestamp -1."""
    log = partition.log
    end_offset = partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark
    if timestamp in (_LATEST, _MAX_TIMESTAMP) and not partition.knows_high_watermark:
        # The previous leader may have returned a higher end offset, which must not appear to decrease.
        raise OffsetNotAvailable("the new leader does not know the high watermark yet; retry")
    if timestamp == _LATEST:
        result.offset, result.leader_epoch = end_offset, partition.leader_epoch
    elif timestamp in (_EARLIEST, _EARLIEST_LOCAL, _EARLIEST_PENDING_UPLOAD):
        # There is no tiered storage: all records are local, and none are pending upload.
        result.offset = log.start_offset
        result.leader_epoch = _epoch_at(partition, log.start_offset)
    elif timestamp == _LATEST_TIERED:
        result.offset, result.leader_epoch = -1, -1
    else:
        if timestamp == _MAX_TIMESTAMP:
            found = await log.max_timestamp(end_offset)
        else:
            found = await log.offset_for_timestamp(timestamp, end_offset)
        partition.ensure_leader()
        if found is None and not partition.knows_high_watermark:
            raise OffsetNotAvailable("the new leader does not know the high watermark yet; retry")
        if found is not None:
            result.timestamp, result.offset = found
            result.leader_epoch = _epoch_at(partition, found.offset)


def _epoch_at(partition: Partition, offset: int) -> int:
    """Return the leader epoch in which the record at an offset was written."""
    if offset >= partition.log.end_offset:
        return partition.leader_epoch
    return partition.log.epochs.epoch_at(offset)


def _epoch_end_offset(partition: Partition, epoch: int) -> tuple[int, int]:
    if epoch == partition.leader_epoch:
        return epoch, partition.log.end_offset
    return partition.log.epochs.end_offset_for(epoch, partition.log.end_offset)
