"""Prefetch records for a consumer: one waiting Fetch request at every leader.

- Each partition has the next offset to fetch and its prefetched records. A partition with enough of them is left out of
  requests, so memory is bounded by the size of a response.
- A response is dropped if its partition was revoked, or the consumer has seeked since the request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code
from headrace.client.fetch.fetched_records import FetchedRecords
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError, OffsetOutOfRange
from headrace.runtime.tasks import Supervisor, wait_until_set
from headrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

_NAMES_UNTIL = 12  # Fetch names topics by id from version 13 on
_WAIT_SECONDS = 0.5
_BYTES_MAX = 50 * 1024 * 1024
_PARTITION_BYTES_MAX = 1024 * 1024
_RESPONSE_SLACK_SECONDS = 30.0
_TIMER_SLACK_SECONDS = 0.001  # timers may fire slightly early and must not be set again then


@dataclass(slots=True, eq=False)
class _PartitionFetchState:
    target: TopicPartition
    fetch_offset: int
    ahead: deque[FetchedRecords] = field(default_factory=deque)
    prefetched_bytes: int = 0
    in_flight: bool = False
    not_before: float = 0.0
    failures: int = 0
    high_watermark: int = -1


class Fetcher:
    def __init__(self, cluster: Cluster, connection_key: str, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._read_committed = read_committed
        self._connection_key = connection_key
        self._fetch_states: dict[TopicPartition, _PartitionFetchState] = {}
        self._next_in_turn: deque[_PartitionFetchState] = deque()  # those with records in hand
        self._leaders_with_fetch_in_flight: set[int] = set()
        self._wake = asyncio.Event()
        self._records_available = asyncio.Event()
        self._tasks = Supervisor()
        self._failure: BaseException | None = None
        self.out_of_range: set[TopicPartition] = set()

    def start(self) -> None:
        self._spawn(self._run(), "consumer fetcher")

    async def stop(self) -> None:
        await self._tasks.stop()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._fetch_states)

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets; drops their prefetched records."""
        for target, offset in offsets.items():
            self.remove([target])
            self._fetch_states[target] = _PartitionFetchState(target, offset)
        self._wake.set()

    def remove(self, targets: Iterable[TopicPartition]) -> None:
        for target in targets:
            state = self._fetch_states.pop(target, None)
            self.out_of_range.discard(target)
            if state is not None and state.ahead:
                self._next_in_turn.remove(state)

    def high_watermark(self, target: TopicPartition) -> int:
        """The end for consumers, by the last response; -1 before the first."""
        state = self._fetch_states.get(target)
        return -1 if state is None else state.high_watermark

    def next_records(self) -> FetchedRecords | None:
        """The next prefetched records, of the partitions in turn; raises errors that retrying does not help."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._next_in_turn:
            self._records_available.clear()
            return None
        state = self._next_in_turn.popleft()
        fetched = state.ahead.popleft()
        state.prefetched_bytes -= fetched.size_bytes
        if state.ahead:
            self._next_in_turn.append(state)
        self._wake.set()
        return fetched

    async def wait_for_records(self) -> None:
        """Wait until `next_records` has a result, or `wake_up` is called."""
        await self._records_available.wait()

    def wake_up(self) -> None:
        """End `wait_for_records`, because the consumer has other work to do."""
        self._records_available.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(work, name).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails by a bug must not leave the application waiting."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._failure = bug
            self._records_available.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await wait_until_set(self._wake, self._dispatch())

    def _dispatch(self) -> float | None:
        """Send the requests that are due; returns the seconds until the next back-off pause ends."""
        now = self._cluster.clock.monotonic()
        next_at: float | None = None
        ready = []
        for state in self._fetch_states.values():
            if state.in_flight or state.target in self.out_of_range:
                continue
            if state.prefetched_bytes >= _PARTITION_BYTES_MAX:
                continue
            if state.not_before > now + _TIMER_SLACK_SECONDS:
                next_at = state.not_before if next_at is None else min(next_at, state.not_before)
                continue
            ready.append(state)
        if ready:
            self._send_fetches(ready)
        return None if next_at is None else next_at - now

    def _send_fetches(self, ready: Iterable[_PartitionFetchState]) -> None:
        """Send a request to every leader without one in flight."""
        by_leader: dict[int, list[_PartitionFetchState]] = defaultdict(list)
        unrouted = []
        for state in ready:
            leader = self._leader(state.target)
            if leader is None:
                unrouted.append(state)
            elif leader not in self._leaders_with_fetch_in_flight:
                by_leader[leader].append(state)
        for leader, states in by_leader.items():
            self._leaders_with_fetch_in_flight.add(leader)
            for state in states:
                state.in_flight = True
            self._spawn(self._fetch(leader, states), f"fetch from broker {leader}")
        if unrouted:
            for state in unrouted:
                state.in_flight = True
            self._spawn(self._refresh_leaders(unrouted), "find leaders")

    def _leader(self, target: TopicPartition) -> int | None:
        if not self._cluster.fresh:
            return None
        topic = self._cluster.view.topics.get(target.topic)
        if topic is None or target.partition >= len(topic.partitions):
            return None
        leader_id = topic.partitions[target.partition].leader_id
        return leader_id if leader_id >= 0 else None

    async def _refresh_leaders(self, states: list[_PartitionFetchState]) -> None:
        for state in states:
            try:
                _ = (await self._cluster.partition(*state.target)).leader
                state.in_flight = False
            except HeadraceError as error:
                self._on_fetch_error(state, error)
        self._wake.set()

    async def _fetch(self, leader: int, states: list[_PartitionFetchState]) -> None:
        requested = {state.target: (state, state.fetch_offset) for state in states}
        try:
            response: FetchResponse = await self._cluster.call(
                self._request(states),
                node_id=leader,
                version_max=_NAMES_UNTIL,
                timeout_seconds=_WAIT_SECONDS + _RESPONSE_SLACK_SECONDS,
                connection_key=self._connection_key,
            )
            if response.error_code:
                raise error_of_code(response.error_code)
            for topic in response.responses:
                for partition in topic.partitions:
                    request = requested.pop(TopicPartition(topic.topic, partition.partition_index), None)
                    if request is None:
                        continue  # not requested
                    state, offset = request
                    state.in_flight = False
                    if self._fetch_states.get(state.target) is state:
                        self._accept_response(state, offset, partition)
            for state, _ in requested.values():
                state.in_flight = False
        except HeadraceError as error:
            for state, _ in requested.values():
                self._on_fetch_error(state, error)
        finally:
            self._leaders_with_fetch_in_flight.discard(leader)
            self._wake.set()

    def _request(self, states: Iterable[_PartitionFetchState]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for state in states:
            index, offset = state.target.partition, state.fetch_offset
            partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=_PARTITION_BYTES_MAX)
            topics[state.target.topic].append(partition)
        return FetchRequest(
            max_wait_ms=int(_WAIT_SECONDS * 1000),
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            isolation_level=1 if self._read_committed else 0,
            topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        )

    def _accept_response(self, state: _PartitionFetchState, offset: int, partition: PartitionData) -> None:
        if partition.error_code:
            self._on_fetch_error(state, error_of_code(partition.error_code))
            return
        state.failures = 0
        state.high_watermark = partition.last_stable_offset if self._read_committed else partition.high_watermark
        records = partition.records
        if not records:
            self._records_available.set()  # a caller may wait to learn that the end is reached
            return
        assert isinstance(records, memoryview)
        fetched = FetchedRecords(state.target, records, offset, partition.aborted_transactions)
        try:
            state.fetch_offset = max(offset, fetched.end_offset)
        except HeadraceError as error:
            self._on_fetch_error(state, error)
            return
        if not state.ahead:
            self._next_in_turn.append(state)
        state.ahead.append(fetched)
        state.prefetched_bytes += fetched.size_bytes
        self._records_available.set()

    def _on_fetch_error(self, state: _PartitionFetchState, error: HeadraceError) -> None:
        state.in_flight = False
        if self._fetch_states.get(state.target) is not state:
            return
        if isinstance(error, OffsetOutOfRange):
            self.out_of_range.add(state.target)
            self._records_available.set()
            return
        self._cluster.invalidate_metadata()
        state.failures += 1
        pause = self._cluster.backoff().seconds_after(state.failures)
        state.not_before = self._cluster.clock.monotonic() + pause
        if not error.retriable:
            self._failure = error
            self._records_available.set()
