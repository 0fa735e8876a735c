"""The records of topics, in order, as a stream.

    async with client.consume("orders", group="billing") as stream:
        async for record in stream:
            ...

With a group, its members share the partitions, and it remembers how far they came. `commit="auto"` commits what the
application has asked past: every few seconds, when partitions change hands, and at the end. So a record counts as done
when the next one is asked for, and a crash repeats some. `commit="manual"` leaves it to `commit()`, or to a
transaction. Without a group everything is read from `start`, and nothing is remembered.

Only committed records are read: none of a transaction that was aborted, or is still open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Self, TypeVar

from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.fetch.fetcher import FetchingRules
from headrace.client.groups.group_member import GroupRules
from headrace.client.metadata import TopicPartition
from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId
from headrace.sdk.incoming import Record
from headrace.sdk.stopping import ClientStopped, StopSignal

T = TypeVar("T")

Start = Literal["earliest", "latest"]
Committing = Literal["auto", "manual"]

_COMMIT_SECONDS = 5.0


class AsyncStream:
    """Iterate over it; or take it by `async with` and iterate as often as you like within.

    Left by a `break` without `async with`, the last record counts as not done, and comes again.
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
            settings=ConsumerSettings(
                start, _COMMIT_SECONDS if self.commits_itself else None, FetchingRules(read_committed=True)
            ),
        )
        self._stopping = StopSignal()
        self._beginning = asyncio.Lock()
        self._is_started = False
        self._is_closed = False
        self._is_entered = False

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._ensure_started()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(in_hand_done=kind is None)

    async def __aiter__(self) -> AsyncIterator[Record]:
        is_done = False
        try:
            while (record := await self.take()) is not None:
                yield record
            is_done = True
        finally:
            if not self._is_entered:
                await self.close(in_hand_done=is_done)

    async def batches(self, records_max: int = 500) -> AsyncIterator[list[Record]]:
        """What is there, up to so many at a time; a batch counts as done when the next one is asked for."""
        is_done = False
        try:
            while records := await self.take_batch(records_max):
                yield records
            is_done = True
        finally:
            if not self._is_entered:
                await self.close(in_hand_done=is_done)

    async def take(self) -> Record | None:
        """The next record; None when this is stopped or closed."""
        found = await self._next_unless_stopped(self._consumer.__anext__)
        return None if found is None else self._record(found)

    async def take_batch(self, records_max: int = 500) -> list[Record]:
        """The next records, at least one; none when this is stopped or closed."""
        found = await self._next_unless_stopped(lambda: self._consumer.poll(records_max))
        return [self._record(record) for record in found or ()]

    async def commit(self, *records: Record) -> None:
        """Let the group have read all up to these; without any, all that was handed out."""
        await self._consumer.commit(end_offsets(records) or None)

    def stop(self) -> None:
        """Hand out no more."""
        self._stopping.request_stop()

    async def close(self, *, in_hand_done: bool = False) -> None:
        """Commit if it commits by itself, and leave the group. Unless it is done, what was handed out last comes
        again."""
        if not self._is_closed:
            self._is_closed = True
            self.stop()
            if self._is_started:
                await self._consumer.close(in_hand_done=in_hand_done)

    # --- for transactions ---

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Hand out again what lies behind these, as far as the partitions are still ours."""
        for target, offset in offsets.items():
            if target in self._consumer.assignment:
                self._consumer.seek(target, offset)

    # --- inside ---

    async def _next_unless_stopped(self, wanted: Callable[[], Awaitable[T]]) -> T | None:
        try:
            if not self._is_started:
                await self._ensure_started()
            return await self._stopping.wait_unless_stopped(wanted)
        except ClientStopped:
            return None

    async def _ensure_started(self) -> None:
        async with self._beginning:
            if not self._is_started and not self._is_closed:
                await self._consumer.__aenter__()
                self._is_started = True

    def _record(self, found: ConsumedRecord) -> Record:
        place = MessageId(found.topic, found.partition, found.offset)
        record = Record(place, found.timestamp_ms, found.key, found.value, found.headers)
        record.stream = self
        record.membership = self._consumer.membership
        return record


def end_offsets(records: Iterable[Record]) -> dict[TopicPartition, int]:
    """Behind the last of them, for each partition."""
    ends: dict[TopicPartition, int] = {}
    for record in records:
        target = TopicPartition(record.topic, record.partition)
        ends[target] = max(ends.get(target, 0), record.offset + 1)
    return ends


def start_offsets(records: Iterable[Record]) -> dict[TopicPartition, int]:
    """At the first of them, for each partition."""
    starts: dict[TopicPartition, int] = {}
    for record in records:
        target = TopicPartition(record.topic, record.partition)
        starts[target] = min(starts.get(target, record.offset), record.offset)
    return starts


def check_transactional(record: Record) -> None:
    """Raise unless a transaction may commit how far the record's stream was read."""
    if record.stream.group is None or record.stream.commits_itself:
        raise InvalidRequest(
            "a transaction acks records of a stream that has a group and leaves the commits to it; open it with "
            'client.consume(topic, group=..., commit="manual")'
        )
