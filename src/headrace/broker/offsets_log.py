"""The log behind the coordinator: `__consumer_offsets`, in Kafka's own record format, so that its tools can read it.

A group's records all lie in one partition, chosen by the hash that Kafka uses. What is appended here is the truth; the
coordinator's maps are rebuilt from it at every start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from headrace.broker.catalogue import Catalogue, Topic
from headrace.broker.partition import Partition
from headrace.model.errors import CoordinatorNotAvailable, HeadraceError, TopicAlreadyExists
from headrace.model.names import CONSUMER_OFFSETS
from headrace.runtime.clock import Clock
from headrace.storage.reading import LogSlice
from headrace.wire.batch import HEADER_SIZE, Record, build_batch, parse_header, read_records

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_UNPACKED_BYTES_MAX = 64 << 20
_COMMIT_SECONDS = 5.0  # Kafka's offsets.commit.timeout.ms


class OffsetsLog:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._damaged: set[Partition] = set()

    async def ensure(self) -> None:
        """Make the topic when the first group shows up."""
        if self._catalogue.find(CONSUMER_OFFSETS) is not None:
            return
        config = self._catalogue.config
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        try:
            await self._catalogue.create(CONSUMER_OFFSETS, config.offsets_topic_num_partitions, configs)
        except TopicAlreadyExists:
            return  # made by another request while this one waited
        except HeadraceError as error:
            raise _not_available(error) from error

    def append(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> asyncio.Future[None] | None:
        """Append in one batch; None when it is committed already, else what to wait for by `durable`."""
        now_ms = self._clock.now_ms()
        batch = build_batch([Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records])
        try:
            partition = self._partition(group_id)
            appended = partition.append(memoryview(batch), parse_header(batch), now_ms)
            return partition.committed(appended.end_offset, self._clock.monotonic() + _COMMIT_SECONDS)
        except HeadraceError as error:
            raise _not_available(error) from error

    def settled(self, group_id: str) -> asyncio.Future[None] | None:
        """None when all that was appended for this group is committed, else what to wait for by `durable`."""
        if self._catalogue.find(CONSUMER_OFFSETS) is None:
            return None
        partition = self._partition(group_id)
        try:
            return partition.committed(partition.log.end_offset, self._clock.monotonic() + _COMMIT_SECONDS)
        except HeadraceError as error:
            raise _not_available(error) from error

    async def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]:
        """Every record from the start of every partition; of a damaged one, what stands before the damage."""
        topic = self._catalogue.find(CONSUMER_OFFSETS)
        if topic is None:
            return
        for partition in topic.partitions:
            try:
                partition.ensure_readable()
                offset = partition.log.start_offset
                while offset < partition.high_watermark:
                    data, offset = await _read(partition, offset)
                    for record in _records(data):
                        if record.key is not None:
                            yield bytes(record.key), None if record.value is None else bytes(record.value)
            except HeadraceError as error:
                self._damaged.add(partition)
                log.critical("the groups of %s-%d are out of service: %s", CONSUMER_OFFSETS, partition.index, error)

    def ensure_readable(self, group_id: str) -> None:
        """A group whose records are damaged must not look like one that never committed: its readers would begin
        anew."""
        if self._damaged and self._partition(group_id) in self._damaged:
            raise CoordinatorNotAvailable(
                f"what was stored of group {group_id} is damaged; the broker's log says where"
            )

    def _partition(self, group_id: str) -> Partition:
        topic: Topic = self._catalogue.topic(CONSUMER_OFFSETS)
        return topic.partitions[java_hash(group_id) % len(topic.partitions)]


async def durable(wait: asyncio.Future[None] | None) -> None:
    """Return when an append is committed."""
    try:
        if wait is not None:
            await wait
    except HeadraceError as error:
        raise _not_available(error) from error


def _not_available(error: HeadraceError) -> CoordinatorNotAvailable:
    """A member that hears of a full disk gives up; one that hears that its coordinator is away comes again."""
    return CoordinatorNotAvailable(f"the log of groups and offsets takes no writes: {error.message}")


def java_hash(text: str) -> int:
    """`String.hashCode` without its sign, as Kafka chooses the partition of a group."""
    value = 0
    units = text.encode("utf-16-be")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


async def _read(partition: Partition, offset: int) -> tuple[bytes, int]:
    piece = partition.read(offset, _READ_BYTES)
    if isinstance(piece, LogSlice):
        data = piece.bytes()
        piece.release()
    else:
        data = await piece.load()
    return data, piece.next_offset


def _records(data: bytes) -> list[Record]:
    view = memoryview(data)
    records: list[Record] = []
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        batch = view[position : position + header.size_bytes]
        records.extend(read_records(batch, header, _UNPACKED_BYTES_MAX))
        position += header.size_bytes
    return records
