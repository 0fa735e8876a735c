"""Reading topics: `async for record in consumer`.

With a group the members share the partitions and the group remembers how far it has read; without one a
consumer reads all partitions of its topics, or those it is given. Delivery is at least once: what is
committed by itself is only what the application has asked past, never the record that it still has in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import NoCommittedOffset
from headrace.client.fetch.fetched_records import ConsumedRecord, FetchedRecords
from headrace.client.fetch.fetcher import Fetcher, FetchingRules
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
from headrace.runtime.supervise import Supervisor

_COMMIT_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_MEMBERSHIP_LOST = (RebalanceInProgress, IllegalGeneration, UnknownMemberId, FencedInstanceId)

Start = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer reads. `start` is for partitions without a committed (or still existing) offset."""

    start: Start = "earliest"
    commit_seconds: float | None = 5.0  # None: only `commit()` commits
    fetching: FetchingRules = field(default_factory=FetchingRules)


class Consumer:
    """One reader. Use it as `async with Consumer(cluster, ["orders"], group=GroupRules("billing")) as
    consumer:`.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] = (),
        *,
        group: GroupRules | None = None,
        partitions: Mapping[TopicPartition, int] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """Subscribe to `topics`, or read `partitions` from the given offsets (not with a group's
        assignment).
        """
        self.settings = settings or ConsumerSettings()
        self._cluster = cluster
        self._topics = list(topics)
        self._explicit_partitions = partitions
        self._group = group
        connection_key = f"consumer {cluster.entropy.token(6)}"
        self._connection_keys = (f"{connection_key} fetch", f"{connection_key} group")
        self._fetcher = Fetcher(cluster, self.settings.fetching, self._connection_keys[0])
        self._member: GroupMembership | None = None
        if group is not None and partitions is None:
            self._member = GroupMembership(
                cluster, group, self._topics, self._connection_keys[1], self._fetcher.wake_up
            )
        self._current: Iterator[ConsumedRecord] = iter(())
        self._current_records: FetchedRecords | None = None
        self._unprocessed: Sequence[ConsumedRecord] = ()  # given to the application, perhaps not dealt with yet
        self._positions: dict[TopicPartition, int] = {}  # behind the last record given to the application
        self._committed: dict[TopicPartition, int] = {}
        self._failure: Exception | None = None  # found behind the records of the last poll
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
        """Commit (if this consumer commits by itself), leave the group and stop reading.

        `in_hand_done` says whether the records given last have been dealt with; else they come again.
        """
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
        """The next record; waits for as long as it takes."""
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
        """What is there, up to `records_max`.

        Waits for the first record until the timeout, then returns []. An error behind the first record is raised by the
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
        """The partitions that this consumer reads now."""
        return self._fetcher.partitions

    @property
    def membership(self) -> ConsumerGroupMetadata:
        """Who commits for this consumer, as its group knows it: for offsets that a transaction commits. Take it with
        the records: who has left the group since is nobody in particular, to whom nothing is refused."""
        return ConsumerGroupMetadata() if self._member is None else self._member.consumer_group_metadata

    def position(self, target: TopicPartition) -> int:
        """The offset that will be read next; the partition must be assigned."""
        return self._positions[target]

    def high_watermark(self, target: TopicPartition) -> int:
        """The end of the partition as the last answer told it; -1 before the first."""
        return self._fetcher.high_watermark(target)

    def seek(self, target: TopicPartition, offset: int) -> None:
        """Go on reading the (assigned) partition from `offset`."""
        if target not in self._positions:
            raise ValueError(f"{target} is not assigned to this consumer")
        self._assign({target: offset})

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, *, deadline_seconds: float | None = None
    ) -> None:
        """Remember in the group how far was read: these offsets, or all that was given to the application."""
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
        """See to what is due before more records are given: the group, commits, lost positions."""
        if self._member is not None:
            self._member.record_poll()
            if self._member.needs_join or self._joining is not None:
                await self._wait_to_join(self._member)
        if self._cluster.clock.monotonic() >= self._commit_due_at:
            await self._try_commit()
        if self._fetcher.out_of_range:
            await self._reset(sorted(self._fetcher.out_of_range))

    def _append_available(self, records: list[ConsumedRecord], records_max: int) -> None:
        """Append what is there."""
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
            # Behind the last record there may be some that are never given: markers, aborted transactions.
            self._positions[source.target] = max(source.next_offset, self._positions[source.target])
        self._current_records = None
        self._current = iter(())

    def _refetch(self) -> None:
        """The bytes in hand were bad: fetch them again from the last good position."""
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
        """Join in a task of its own: a poll that times out must not break off in the middle of it."""
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
        """Join the next generation and take over what it gives us."""
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
            member.request_rejoin()  # what we let go of can be handed on only in another round

    async def _starting_offsets(self, targets: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin: at the group's committed offset if there is one, else as `start` says."""
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
        """The offset lies outside the log (trimmed away, or the topic was made anew): begin as `start`
        says.
        """
        if self.settings.start == "none":
            raise OffsetOutOfRange(f"{targets[0]} has no offset {self._positions[targets[0]]}; seek to one that it has")
        found = await self._find_offsets(targets)
        self._assign({target: at.offset for target, at in found.items()})

    async def _find_offsets(self, targets: Iterable[TopicPartition]) -> dict[TopicPartition, FoundOffset]:
        """As `start` says. For a reader of committed records the end is the last stable offset: records of transactions
        that are open now come when these are committed."""
        where = START if self.settings.start == "earliest" else END
        read_committed = self.settings.fetching.read_committed
        return await find_offsets(self._cluster, dict.fromkeys(targets, where), read_committed=read_committed)

    async def _try_commit(self) -> None:
        """Commit in passing: if the coordinator is away, the next time will do, and reading goes on."""
        try:
            await self._commit_processed(_COMMIT_SECONDS)
        except HeadraceError as error:
            if not error.retriable:
                raise

    async def _commit_processed(self, deadline_seconds: float) -> None:
        """Commit what the application has dealt with, if this consumer does that by itself.

        A commit that is refused because the group has moved on is no harm: the records come again elsewhere.
        """
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
