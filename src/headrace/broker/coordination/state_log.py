"""The log of a coordinator: an internal, compacted topic with the coordinator's state.

- All records of an owner (a group, a transactional id) are in one partition, chosen with Kafka's hash, so they become
  durable in the order in which they were appended.
- The leader of that partition is the coordinator of its owners. When its leadership begins it loads the whole
  partition, including records that are not committed yet, because no other broker can append in between. It serves
  requests only after everything that it has loaded is committed.
- A partition that cannot be read to its end is damaged, and its owners are out of service: a partial state would look
  like a state that never existed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.group_offsets import ProducerTransaction
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
    NotLeader,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from headrace.runtime.clock import Clock
from headrace.storage.log.reading import LogSlice
from headrace.wire.batches.batch import (
    BatchRecord,
    build_batch,
    parse_header,
    parse_marker,
    read_records,
    split_batches,
)

log = logging.getLogger(__name__)

KeyValue = tuple[bytes, bytes | None]

_READ_BYTES = 1 << 20
_UNPACKED_BYTES_MAX = 64 << 20
COMMIT_SECONDS = 5.0  # Kafka's offsets.commit.timeout.ms


class StoredRecord(NamedTuple):
    key: bytes
    value: bytes | None
    transaction: ProducerTransaction | None
    """The transaction that contains the record, which applies only if that commits."""


class StoredTransactionMarker(NamedTuple):
    """The end of a transaction with records in this log."""

    transaction: ProducerTransaction
    is_commit: bool


class StateLog:
    def __init__(self, catalogue: Catalogue, clock: Clock, topic: str) -> None:
        self.catalogue = catalogue
        self.clock = clock
        self.topic = topic
        self._damaged: set[Partition] = set()

    async def ensure(self) -> None:
        """Create the topic of the log if it does not exist yet."""
        raise NotImplementedError

    async def ensure_topic(self, partitions: int, configs: Mapping[str, str], replication: int) -> None:
        """Create the topic on first use, with as many replicas as possible."""
        if self.catalogue.find(self.topic) is not None:
            return
        replication = min(replication, max(len(self.catalogue.usable_brokers()), 1))
        own = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            # Independent of the default for other topics: 2, unless a single failure would then make it unavailable.
            "min.insync.replicas": str((replication + 1) // 2),
        }
        try:
            await self.catalogue.create(self.topic, partitions, {**own, **configs}, replication=replication)
        except TopicAlreadyExists:
            return  # created by a concurrent request
        except HeadraceError as error:
            raise self._as_coordinator_error(error) from error

    def append(self, owner: str, records: Sequence[KeyValue]) -> int:
        """Append in one batch; return the end offset that must be `committed`."""
        now_ms = self.clock.now_ms()
        batch = build_batch([BatchRecord(key=key, value=value, timestamp_ms=now_ms) for key, value in records])
        try:
            partition = self.partition_of(owner)
            partition.ensure_min_isr()
            return partition.append(memoryview(batch), parse_header(batch), now_ms).end_offset
        except HeadraceError as error:
            raise self._as_coordinator_error(error) from error

    def is_committed(self, owner: str, end_offset: int) -> bool:
        return end_offset <= self.partition_of(owner).high_watermark

    async def committed(self, owner: str, end_offset: int) -> None:
        try:
            wait = self.partition_of(owner).committed(end_offset, self.clock.monotonic() + COMMIT_SECONDS)
            if wait is not None:
                await wait
        except HeadraceError as error:
            raise self._as_coordinator_error(error) from error

    async def load(self, partition: Partition) -> AsyncIterator[StoredRecord | StoredTransactionMarker]:
        """Yield all records of a partition whose leadership has just begun; of a damaged one, those before the damage.
        End when all of them are committed; raise `NotCoordinator` if the leadership ends before."""
        epoch = partition.leader_epoch
        end_offset = partition.log.end_offset
        self._damaged.discard(partition)
        try:
            partition.ensure_readable()
            offset = partition.log.start_offset
            while offset < end_offset:
                data, offset = await read_batches(partition, offset, end_offset)
                _check_leader_epoch(partition, epoch)
                for stored in _decode_records(partition.index, data):
                    yield stored
            await until_committed(partition, end_offset)
        except HeadraceError as error:
            _check_leader_epoch(partition, epoch)
            self._damaged.add(partition)
            log.critical(
                "state of a coordinator is out of service partition=%s-%d error=%s", self.topic, partition.index, error
            )
        _check_leader_epoch(partition, epoch)

    def is_damaged(self, partition: Partition) -> bool:
        return partition in self._damaged

    def ensure_readable(self, owner: str) -> None:
        """Raise if the records of the owner are damaged, which must not be treated as if it did not exist."""
        if self._damaged and self.partition_of(owner) in self._damaged:
            raise CoordinatorNotAvailable(f"the stored state of {owner} is damaged; see the log of the broker")

    def partition_of(self, owner: str) -> Partition:
        """Return the partition of the owner; raise `NotCoordinator` unless this broker leads it."""
        try:
            return self.catalogue.partition(self.topic, self.partition_index_of(owner))
        except (NotLeader, UnknownTopicOrPartition) as error:
            raise NotCoordinator(f"this broker is not the coordinator of {owner}: {error.message}") from error

    def partition_index_of(self, owner: str) -> int:
        """Return the index of the owner's partition, which any broker may lead."""
        topic = self.catalogue.find(self.topic)
        if topic is None:
            raise NotCoordinator(f"{owner} has no coordinator: the topic {self.topic} does not exist yet")
        return java_hash(owner) % topic.partition_count

    def _as_coordinator_error(self, error: HeadraceError) -> HeadraceError:
        """Translate an error of the log: clients give up on storage errors, but retry if a coordinator is
        unavailable."""
        if isinstance(error, NotCoordinator):
            return error
        if isinstance(error, NotLeader):
            return NotCoordinator(error.message)
        return CoordinatorNotAvailable(f"writing to {self.topic} failed: {error.message}")


@lru_cache(maxsize=4096)  # transactional batches repeatedly hash the same few ids
def java_hash(text: str) -> int:
    """Compute `String.hashCode` without its sign, with which Kafka chooses the partition of an owner."""
    value = 0
    units = text.encode("utf-16-be")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def _check_leader_epoch(partition: Partition, epoch: int) -> None:
    if not partition.is_leader or partition.leader_epoch != epoch:
        raise NotCoordinator(f"this broker is no longer the leader of {partition.topic}-{partition.index}")


async def until_committed(partition: Partition, end_offset: int) -> None:
    """Return when everything below `end_offset` is committed; raise `NotLeader` when this leader was replaced.

    While the broker's session is in doubt the leader suspends writes, which ends every wait. If its leadership is
    confirmed afterwards, nothing is wrong with the log: the wait begins again.
    """
    epoch = partition.leader_epoch
    while (wait := partition.committed(end_offset, inf)) is not None:
        try:
            await wait
        except NotLeader:
            if not partition.is_leader or partition.leader_epoch != epoch:
                raise


async def read_batches(
    partition: Partition, offset: int, end_offset: int, size_bytes_max: int = _READ_BYTES
) -> tuple[bytes, int]:
    """Read whole batches, at least one and about as many as fit into the size; return them and their end offset."""
    piece = partition.read(offset, size_bytes_max, end_offset)
    if isinstance(piece, LogSlice):
        data = piece.bytes()
        piece.release()
    else:
        data = await piece.load()
    return data, piece.next_offset


def _decode_records(partition_index: int, data: bytes) -> Iterator[StoredRecord | StoredTransactionMarker]:
    for batch, header in split_batches(data):
        transaction = (partition_index, header.producer_id) if header.is_transactional else None
        if header.is_control:
            marker = parse_marker(batch, header)
            if marker is not None:
                yield StoredTransactionMarker((partition_index, header.producer_id), marker.is_commit)
            continue
        for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
            if record.key is not None:
                value = None if record.value is None else bytes(record.value)
                yield StoredRecord(bytes(record.key), value, transaction)
