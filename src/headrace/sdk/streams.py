"""The records of topics, in order per partition, as a stream.

    async with client.consume("orders", group="billing") as stream:
        async for record in stream:
            ...

- The members of a group share the partitions, and the group remembers its committed offsets.
- `commit="auto"` commits the records before the current one: every few seconds, in a rebalance, and at the end. A
  record counts as processed when the next one is requested, so a crash repeats some records.
- `commit="manual"` leaves commits to `commit()` or to a transaction.
- Without a group, everything from `start` is read and nothing is committed.
- Only committed records are read: none of an aborted or open transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Self, TypeVar

from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import ConsumerGroupMetadata
from headrace.client.metadata import TopicPartition
from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId
from headrace.sdk.incoming import Received
from headrace.sdk.stopping import StopSignal

T = TypeVar("T")

Start = Literal["earliest", "latest"]
Committing = Literal["auto", "manual"]

_COMMIT_SECONDS = 5.0


class Record(Received):
    """A record of a stream. `membership`: the group member that `stream` was when it read the record."""

    __slots__ = ("membership", "stream")

    membership: ConsumerGroupMetadata
    stream: AsyncStream


class AsyncStream:
    """Iterate over it, which closes it at the end; within `async with` any number of iterations are possible.

    After a `break` without `async with` the last record counts as not processed, and is delivered again.
    """

    def __init__(
        self, cluster: Cluster, topics: Sequence[str], group: str | None, start: Start, commit: Committing
    ) -> None:
        self.group = group
        self.commits_itself = commit == "auto"
        self._consumer = Consumer(
            cluster,
            topics,
            group=None if group is None else GroupRules(group),
            settings=ConsumerSettings(start, _COMMIT_SECONDS if self.commits_itself else None, read_committed=True),
        )
        self._stopping = StopSignal()
        self._start_lock = asyncio.Lock()
        self._is_started = False
        self._is_closed = False
        self._is_entered = False

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._ensure_started()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(in_hand_done=kind is None)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._iterate(self.take)

    def batches(self, records_max: int = 500) -> AsyncIterator[list[Record]]:
        """Up to `records_max` records at a time, as they are available. A batch counts as processed when the next one
        is requested."""
        return self._iterate(lambda: self.take_batch(records_max))

    async def take(self) -> Record | None:
        """The next record; None after `stop` or `close`."""
        found = await self._next_unless_stopped(self._consumer.__anext__)
        return None if found is None else self._record(found)

    async def take_batch(self, records_max: int = 500) -> list[Record]:
        """The next records, at least one; none after `stop` or `close`."""
        found = await self._next_unless_stopped(lambda: self._consumer.poll(records_max))
        return [self._record(record) for record in found or ()]

    async def commit(self, *records: Record) -> None:
        """Commit the offsets behind these records; without arguments, behind all delivered records."""
        await self._consumer.commit(end_offsets(records) or None)

    def stop(self) -> None:
        """Deliver no more records."""
        self._stopping.request_stop()

    async def close(self, *, in_hand_done: bool = False) -> None:
        """Commit if `commit="auto"`, and leave the group. Unless `in_hand_done`, the records that were delivered last
        are delivered again."""
        if not self._is_closed:
            self._is_closed = True
            self.stop()
            if self._is_started:
                await self._consumer.close(in_hand_done=in_hand_done)

    # --- for transactions ---

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Deliver again from these offsets, for the partitions that are still assigned to this member."""
        for target, offset in offsets.items():
            if target in self._consumer.assignment:
                self._consumer.seek(target, offset)

    # --- inside ---

    async def _iterate(self, take: Callable[[], Awaitable[T | None]]) -> AsyncIterator[T]:
        is_done = False
        try:
            while taken := await take():
                yield taken
            is_done = True
        finally:
            if not self._is_entered:
                await self.close(in_hand_done=is_done)

    async def _next_unless_stopped(self, fetch: Callable[[], Awaitable[T]]) -> T | None:
        if not self._is_started and not self._stopping.is_requested:
            await self._ensure_started()
        return await self._stopping.wait_unless_stopped(fetch)

    async def _ensure_started(self) -> None:
        async with self._start_lock:
            if not self._is_started and not self._is_closed:
                await self._consumer.__aenter__()
                self._is_started = True

    def _record(self, found: ConsumedRecord) -> Record:
        message_id = MessageId(found.topic, found.partition, found.offset)
        record = Record(message_id, found.timestamp_ms, found.key, found.value, found.headers)
        record.stream = self
        record.membership = self._consumer.membership
        return record


def end_offsets(records: Iterable[Record]) -> dict[TopicPartition, int]:
    """Per partition, the offset behind the last record."""
    ends: dict[TopicPartition, int] = {}
    for record in records:
        target = TopicPartition(record.topic, record.partition)
        ends[target] = max(ends.get(target, 0), record.offset + 1)
    return ends


def start_offsets(records: Iterable[Record]) -> dict[TopicPartition, int]:
    """Per partition, the offset of the first record."""
    starts: dict[TopicPartition, int] = {}
    for record in records:
        target = TopicPartition(record.topic, record.partition)
        starts[target] = min(starts.get(target, record.offset), record.offset)
    return starts


def check_transactional(record: Record) -> None:
    """Raise unless a transaction may commit offsets of the record's stream."""
    if record.stream.group is None or record.stream.commits_itself:
        raise InvalidRequest(
            "a transaction acks records of a stream that has a group and leaves the commits to it; open it with "
            'client.consume(topic, group=..., commit="manual")'
        )
