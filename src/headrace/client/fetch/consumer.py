"""Read topics: `async for record in consumer`.

- The members of a group share the partitions, and the group commits offsets. Without a group a consumer reads all
  partitions of its topics, or those that it is given.
- Delivery is at least once: automatic commits cover only records that the application has finished, which means that it
  has asked for the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import NoCommittedOffset
from headrace.client.fetch.fetched_records import ConsumedRecord, FetchedRecords
from headrace.client.fetch.fetcher import Fetcher
from headrace.client.groups.group_membership import GroupMembership, GroupRules
from headrace.client.groups.offsets import (
    END,
    START,
    Commit,
    ConsumerGroupMetadata,
    FoundOffset,
    commit,
    committed,
    find_offsets,
)
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    FencedInstanceId,
    HeadraceError,
    IllegalGeneration,
    InvalidGroupId,
    OffsetOutOfRange,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.runtime.tasks import Supervisor

_COMMIT_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_MEMBERSHIP_LOST = (RebalanceInProgress, IllegalGeneration, UnknownMemberId, FencedInstanceId)

Start = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`start` applies to partitions without a committed offset, or whose committed offset does not exist any more."""

    start: Start = "earliest"
    commit_seconds: float | None = 5.0  # None: only `commit()` commits
    read_committed: bool = False


class Consumer:
    """One reader. Use it as `async with Consumer(cluster, ["orders"], group=GroupRules("billing")) as consumer:`."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] = (),
        *,
        group: GroupRules | None = None,
        partitions: Mapping[TopicPartition, int] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """Subscribe to `topics`, or read `partitions` from the given offsets (not with a group's assignment)."""
        self.settings = settings or ConsumerSettings()
        self._cluster = cluster
        self._topics = list(topics)
        self._explicit_partitions = partitions
        self._group = group
        connection_key = f"consumer {cluster.entropy.token(6)}"
        self._connection_keys = (f"{connection_key} fetch", f"{connection_key} group")
        self._fetcher = Fetcher(cluster, self._connection_keys[0], read_committed=self.settings.read_committed)
        self._member: GroupMembership | None = None
        if group is not None and partitions is None:
            self._member = GroupMembership(
                cluster, group, self._topics, self._connection_keys[1], self._fetcher.wake_up
            )
        self._current: Iterator[ConsumedRecord] = iter(())
        self._current_records: FetchedRecords | None = None
        self._unprocessed: Sequence[ConsumedRecord] = ()  # given to the application, perhaps not processed yet
        self._positions: dict[TopicPartition, int] = {}  # after the last record given to the application
        self._committed: dict[TopicPartition, int] = {}
        self._failure: Exception | None = None  # found after the records of the last poll
        self._commit_due_at = 0.0
        self._joining: asyncio.Task[HeadraceError | None] | None = None
        self._tasks = Supervisor()

    async def __aenter__(self) -> Self:
        self._commit_due_at = self._next_commit_at()
        self._fetcher.start()
        if self._member is not None:
            self._member.start()
        elif self._explicit_partitions is not None:
            self._assign(dict(self._explicit_partitions))
        else:
            targets = [target for topic in self._topics for target in await self._partitions_of(topic)]
            self._assign(await self._starting_offsets(targets))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(in_hand_done=kind is None)

    async def close(self, *, in_hand_done: bool = True) -> None:
        """Commit (with automatic commits), leave the group and stop reading. `in_hand_done`: the records given last
        were processed; otherwise they are delivered again."""
        if in_hand_done:
            self._unprocessed = ()
        await self._tasks.stop()
        try:
            await self._commit_processed(_CLOSE_SECONDS)
        finally:
            await self._fetcher.stop()
            if self._member is not None:
                await self._member.stop()
            for connection_key in self._connection_keys:
                self._cluster.close_connections(connection_key)

    def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        return self

    async def __anext__(self) -> ConsumedRecord:
        self._unprocessed = ()
        self._raise_failure()
        while True:
            await self._run_due_work()
            record = self._next_in_hand()
            if record is not None:
                self._unprocessed = (record,)
                return record
            await self._fetcher.wait_for_records()

    async def poll(self, records_max: int = 500, timeout_seconds: float | None = None) -> list[ConsumedRecord]:
        """Return available records, up to `records_max`.

        Waits for the first record until the timeout, then returns []. An error after the first record is raised by the
        next call: the records before it have moved the position already, and would be committed without being seen.
        """
        self._unprocessed = ()
        self._raise_failure()
        records: list[ConsumedRecord] = []
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    await self._run_due_work()
                    self._append_available(records, records_max)
                    if records:
                        break
                    await self._fetcher.wait_for_records()
        except TimeoutError:
            pass
        self._unprocessed = records
        return records

    # --- positions ---

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._fetcher.partitions

    @property
    def membership(self) -> ConsumerGroupMetadata:
        """The group metadata for offsets that a transaction commits. Read it together with the records: after the
        consumer has left the group it is empty, and the coordinator accepts such commits without a check."""
        return ConsumerGroupMetadata() if self._member is None else self._member.consumer_group_metadata

    def position(self, target: TopicPartition) -> int:
        """The offset that will be read next; the partition must be assigned."""
        return self._positions[target]

    def high_watermark(self, target: TopicPartition) -> int:
        """The high watermark of the last response; -1 before the first."""
        return self._fetcher.high_watermark(target)

    def seek(self, target: TopicPartition, offset: int) -> None:
        """Continue to read the assigned partition from `offset`."""
        if target not in self._positions:
            raise ValueError(f"{target} is not assigned to this consumer")
        self._assign({target: offset})

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, *, deadline_seconds: float | None = None
    ) -> None:
        """Commit these offsets, or those of all records that were given to the application."""
        if self._group is None:
            raise InvalidGroupId("this consumer has no group to commit to; give it group=GroupRules(...)")
        wanted = dict(self._positions if offsets is None else offsets)
        consumer_group_metadata = None if self._member is None else self._member.consumer_group_metadata
        commits = {target: Commit(offset) for target, offset in wanted.items()}
        try:
            await commit(
                self._cluster, self._group.group, commits, consumer_group_metadata, deadline_seconds=deadline_seconds
            )
        except _MEMBERSHIP_LOST:
            if self._member is not None:
                self._member.request_rejoin()
            raise
        self._committed.update(wanted)

    # --- inside ---

    async def _run_due_work(self) -> None:
        """Before more records are given: join the group, commit, reset positions that are out of range."""
        if self._member is not None:
            self._member.record_poll()
            if self._member.needs_join or self._joining is not None:
                await self._wait_to_join(self._member)
        if self._cluster.clock.monotonic() >= self._commit_due_at:
            await self._try_commit()
        if self._fetcher.out_of_range:
            await self._reset(sorted(self._fetcher.out_of_range))

    def _append_available(self, records: list[ConsumedRecord], records_max: int) -> None:
        try:
            while len(records) < records_max and (record := self._next_in_hand()) is not None:
                records.append(record)
        except Exception as error:
            if not records:
                raise
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _next_in_hand(self) -> ConsumedRecord | None:
        while True:
            try:
                record = next(self._current, None)
            except HeadraceError:
                self._refetch()
                raise
            if record is not None:
                self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                return record
            self._drop_current_records()
            self._current_records = self._fetcher.next_records()
            if self._current_records is None:
                return None
            self._current = iter(self._current_records)

    def _drop_current_records(self) -> None:
        source = self._current_records
        if source is not None and source.target in self._positions:
            # Markers and records of aborted transactions may follow the last record.
            self._positions[source.target] = max(source.next_offset, self._positions[source.target])
        self._current_records = None
        self._current = iter(())

    def _refetch(self) -> None:
        """Fetch corrupt bytes again, from the last good position."""
        assert self._current_records is not None
        target = self._current_records.target
        self._assign({target: self._positions[target]})

    def _assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._revoke(offsets)
        self._positions.update(offsets)
        self._fetcher.read_from(offsets)

    def _revoke(self, targets: Iterable[TopicPartition]) -> None:
        targets = set(targets)
        self._fetcher.remove(targets)
        if self._current_records is not None and self._current_records.target in targets:
            self._current_records = None
            self._current = iter(())
        for target in targets:
            self._positions.pop(target, None)
            self._committed.pop(target, None)

    async def _wait_to_join(self, member: GroupMembership) -> None:
        """Join in a separate task, because a poll that times out must not cancel it."""
        if self._joining is None:
            self._joining = self._tasks.spawn(self._join(member), "group join")
        joining = self._joining
        await asyncio.wait([joining])
        self._joining = None
        if (error := joining.result()) is not None:
            raise error

    async def _join(self, member: GroupMembership) -> HeadraceError | None:
        try:
            while member.needs_join:
                await self._rejoin(member)
        except HeadraceError as error:
            return error
        return None

    async def _rejoin(self, member: GroupMembership) -> None:
        await self._try_commit()
        if not member.cooperative or not member.owned:
            self._revoke(list(self._positions))
        before = set(self._positions)
        assigned = await member.join()
        lost = before - assigned
        self._revoke(lost)
        gained = assigned - before
        try:
            self._assign(await self._starting_offsets(sorted(gained)))
        except HeadraceError:
            member.request_rejoin()
            raise
        if lost and member.cooperative:
            member.request_rejoin()  # revoked partitions can be assigned only in another round

    async def _starting_offsets(self, targets: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of the group, and for other partitions those of `start`."""
        offsets: dict[TopicPartition, int] = {}
        if self._group is not None and targets:
            known = await committed(self._cluster, self._group.group, targets)
            offsets = {target: found.offset for target, found in known.items()}
            self._committed.update(offsets)
        fresh = [target for target in targets if target not in offsets]
        if not fresh:
            return offsets
        if self.settings.start == "none":
            raise NoCommittedOffset(f'nothing is committed for {fresh[0]}; commit an offset or set another "start"')
        found = await self._find_offsets(fresh)
        return offsets | {target: at.offset for target, at in found.items()}

    async def _reset(self, targets: Sequence[TopicPartition]) -> None:
        """The offset is out of range (trimmed, or the topic was created again): continue as `start` says."""
        if self.settings.start == "none":
            raise OffsetOutOfRange(f"{targets[0]} has no offset {self._positions[targets[0]]}; seek to one that it has")
        found = await self._find_offsets(targets)
        self._assign({target: at.offset for target, at in found.items()})

    async def _find_offsets(self, targets: Iterable[TopicPartition]) -> dict[TopicPartition, FoundOffset]:
        """The offsets of `start`. With `read_committed` the end is the last stable offset, so that records of open
        transactions are read when these commit."""
        where = START if self.settings.start == "earliest" else END
        wanted = dict.fromkeys(targets, where)
        return await find_offsets(self._cluster, wanted, read_committed=self.settings.read_committed)

    async def _try_commit(self) -> None:
        """Commit, and ignore retriable errors: the next automatic commit retries, and reading continues."""
        try:
            await self._commit_processed(_COMMIT_SECONDS)
        except HeadraceError as error:
            if not error.retriable:
                raise

    async def _commit_processed(self, deadline_seconds: float) -> None:
        """Commit processed records, if automatic commits are enabled. A commit may be rejected after a rebalance; the
        records are then delivered again to another member."""
        self._commit_due_at = self._next_commit_at()
        if self._group is None or self.settings.commit_seconds is None:
            return
        done = dict(self._positions)
        for record in self._unprocessed:
            target = TopicPartition(record.topic, record.partition)
            done[target] = min(done.get(target, record.offset), record.offset)
        changed = {target: offset for target, offset in done.items() if self._committed.get(target) != offset}
        if changed and (self._member is None or self._member.consumer_group_metadata.member_id):
            with suppress(*_MEMBERSHIP_LOST):
                await self.commit(changed, deadline_seconds=deadline_seconds)

    def _next_commit_at(self) -> float:
        if self.settings.commit_seconds is None:
            return float("inf")
        return self._cluster.clock.monotonic() + self.settings.commit_seconds

    async def _partitions_of(self, topic: str) -> list[TopicPartition]:
        view = await self._cluster.call_with_retries(lambda: self._cluster.topic(topic))
        return [TopicPartition(topic, partition.partition) for partition in view.partitions]
