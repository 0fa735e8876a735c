"""Reads ahead of the application: keeps one Fetch request waiting at every leader that has something to give.

Each partition has the offset to fetch next and what has been fetched but not yet handed out. A partition with
enough in hand is left out of the requests, so memory is bounded by what one answer may hold. An answer counts
only if the partition still stands where it stood when it was asked for: a seek or a revocation outdates it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import refusal
from headrace.client.fetched import FetchedRecords
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError, OffsetOutOfRange
from headrace.runtime.supervise import Supervisor
from headrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

_NAMES_UNTIL = 12  # Fetch names topics by id from version 13 on
_ANSWER_SLACK_SECONDS = 30.0
_TIMER_SLACK_SECONDS = 0.001  # timers may fire a little early, and must not then be set again and again


@dataclass(frozen=True, slots=True)
class FetchingRules:
    """How much to ask for, and how long a broker may wait for it."""

    wait_seconds: float = 0.5
    bytes_min: int = 1
    bytes_max: int = 50 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    read_committed: bool = False


@dataclass(slots=True, eq=False)
class _Reading:
    """Where reading of one partition stands."""

    target: TopicPartition
    fetch_offset: int
    ahead: deque[FetchedRecords] = field(default_factory=deque)
    ahead_bytes: int = 0
    in_flight: bool = False
    not_before: float = 0.0
    failures: int = 0
    high_watermark: int = -1


class Fetcher:
    """The background reader of one consumer."""

    def __init__(self, cluster: Cluster, rules: FetchingRules, lane: str) -> None:
        self._cluster = cluster
        self._rules = rules
        self._lane = lane
        self._readings: dict[TopicPartition, _Reading] = {}
        self._turns: deque[_Reading] = deque()  # those with records in hand, in the order to hand them out
        self._busy_leaders: set[int] = set()
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._tasks = Supervisor()
        self._failure: BaseException | None = None
        self.out_of_range: set[TopicPartition] = set()

    def start(self) -> None:
        self._spawn(self._run(), "consumer fetcher")

    async def stop(self) -> None:
        await self._tasks.stop()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._readings)

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on; what was fetched of them before is forgotten."""
        for target, offset in offsets.items():
            self.forget([target])
            self._readings[target] = _Reading(target, offset)
        self._wake.set()

    def forget(self, targets: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        for target in targets:
            reading = self._readings.pop(target, None)
            self.out_of_range.discard(target)
            if reading is not None and reading.ahead:
                self._turns.remove(reading)

    def high_watermark(self, target: TopicPartition) -> int:
        """The end that consumers may read to, as last heard; -1 before the first answer."""
        reading = self._readings.get(target)
        return -1 if reading is None else reading.high_watermark

    def take(self) -> FetchedRecords | None:
        """The next records in hand, each partition in its turn; raises what went wrong for good."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._turns:
            self._arrived.clear()
            return None
        reading = self._turns.popleft()
        fetched = reading.ahead.popleft()
        reading.ahead_bytes -= fetched.size_bytes
        if reading.ahead:
            self._turns.append(reading)
        self._wake.set()
        return fetched

    async def arrival(self) -> None:
        """Wait until `take` has something to say, or `interrupt` is called."""
        await self._arrived.wait()

    def interrupt(self) -> None:
        """End the current wait for an arrival: the consumer has something else to see to."""
        self._arrived.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(work, name).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that dies of a bug must not leave the application waiting."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._failure = bug
            self._arrived.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = self._dispatch()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _dispatch(self) -> float | None:
        """Start what can be started; returns the seconds until a pause ends."""
        now = self._cluster.clock.monotonic()
        next_at: float | None = None
        ready = []
        for reading in self._readings.values():
            if reading.in_flight or reading.target in self.out_of_range:
                continue
            if reading.ahead_bytes >= self._rules.partition_bytes_max:
                continue
            if reading.not_before > now + _TIMER_SLACK_SECONDS:
                next_at = reading.not_before if next_at is None else min(next_at, reading.not_before)
                continue
            ready.append(reading)
        if ready:
            self._route(ready)
        return None if next_at is None else next_at - now

    def _route(self, ready: Iterable[_Reading]) -> None:
        """Ask every leader that is not being asked; the others' turn comes when they have answered."""
        by_leader: dict[int, list[_Reading]] = defaultdict(list)
        unrouted = []
        for reading in ready:
            leader = self._leader(reading.target)
            if leader is None:
                unrouted.append(reading)
            elif leader not in self._busy_leaders:
                by_leader[leader].append(reading)
        for leader, readings in by_leader.items():
            self._busy_leaders.add(leader)
            for reading in readings:
                reading.in_flight = True
            self._spawn(self._fetch(leader, readings), f"fetch from broker {leader}")
        if unrouted:
            for reading in unrouted:
                reading.in_flight = True
            self._spawn(self._find_leaders(unrouted), "find leaders")

    def _leader(self, target: TopicPartition) -> int | None:
        if not self._cluster.fresh:
            return None
        topic = self._cluster.view.topics.get(target.topic)
        if topic is None or target.partition >= len(topic.partitions):
            return None
        leader_id = topic.partitions[target.partition].leader_id
        return leader_id if leader_id >= 0 else None

    async def _find_leaders(self, readings: list[_Reading]) -> None:
        for reading in readings:
            try:
                _ = (await self._cluster.partition(*reading.target)).leader
                reading.in_flight = False
            except HeadraceError as error:
                self._failed(reading, error)
        self._wake.set()

    async def _fetch(self, leader: int, readings: list[_Reading]) -> None:
        asked = {reading.target: (reading, reading.fetch_offset) for reading in readings}
        try:
            answer: FetchResponse = await self._cluster.call(
                self._request(readings),
                node_id=leader,
                version_max=_NAMES_UNTIL,
                timeout_seconds=self._rules.wait_seconds + _ANSWER_SLACK_SECONDS,
                lane=self._lane,
            )
            if answer.error_code:
                raise refusal(answer.error_code)
            for topic in answer.responses:
                for told in topic.partitions:
                    question = asked.pop(TopicPartition(topic.topic, told.partition_index), None)
                    if question is None:
                        continue  # never asked for
                    reading, offset = question
                    reading.in_flight = False
                    if self._readings.get(reading.target) is reading:
                        self._accept(reading, offset, told)
            for reading, _ in asked.values():
                reading.in_flight = False
        except HeadraceError as error:
            for reading, _ in asked.values():
                self._failed(reading, error)
        finally:
            self._busy_leaders.discard(leader)
            self._wake.set()

    def _request(self, readings: Iterable[_Reading]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for reading in readings:
            topics[reading.target.topic].append(
                FetchPartition(
                    partition=reading.target.partition,
                    fetch_offset=reading.fetch_offset,
                    partition_max_bytes=self._rules.partition_bytes_max,
                )
            )
        return FetchRequest(
            max_wait_ms=int(self._rules.wait_seconds * 1000),
            min_bytes=self._rules.bytes_min,
            max_bytes=self._rules.bytes_max,
            isolation_level=1 if self._rules.read_committed else 0,
            topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        )

    def _accept(self, reading: _Reading, offset: int, told: PartitionData) -> None:
        if told.error_code:
            self._failed(reading, refusal(told.error_code))
            return
        reading.failures = 0
        reading.high_watermark = told.last_stable_offset if self._rules.read_committed else told.high_watermark
        records = told.records
        if not records:
            self._arrived.set()  # the end may have been reached, and somebody may wait to hear it
            return
        assert isinstance(records, memoryview)
        fetched = FetchedRecords(reading.target, records, offset, told.aborted_transactions)
        try:
            reading.fetch_offset = max(offset, fetched.end_offset)
        except HeadraceError as error:
            self._failed(reading, error)
            return
        if not reading.ahead:
            self._turns.append(reading)
        reading.ahead.append(fetched)
        reading.ahead_bytes += fetched.size_bytes
        self._arrived.set()

    def _failed(self, reading: _Reading, error: HeadraceError) -> None:
        reading.in_flight = False
        if self._readings.get(reading.target) is not reading:
            return
        if isinstance(error, OffsetOutOfRange):
            self.out_of_range.add(reading.target)
            self._arrived.set()
            return
        self._cluster.distrust()
        reading.failures += 1
        pause = self._cluster.backoff().seconds_after(reading.failures)
        reading.not_before = self._cluster.clock.monotonic() + pause
        if not error.retriable:
            self._failure = error
            self._arrived.set()
