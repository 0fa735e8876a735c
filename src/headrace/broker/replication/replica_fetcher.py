"""Replicate the partitions that other brokers lead, with one fetcher per leader: fetch, append, flush, fetch again.

- The offset of a fetch guarantees to the leader that all records below it are on the follower's disk.
- The leader's log is authoritative. The leader detects divergence by the epoch of the follower's last batch, and the
  follower truncates its log to the point of divergence, not to its own high watermark. It truncates below the high
  watermark only after an unclean election, which an operator has requested.
- Fetch sessions are incremental: a request contains only changed positions, and a partition that is missing in a
  response has no new records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from headrace.broker.cluster.peers import Peers
from headrace.broker.partition import Partition
from headrace.machines.queues.rate_limiter import RateLimiter
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    FetchSessionIdNotFound,
    HeadraceError,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    StorageFailure,
)
from headrace.model.registry_records import BrokerRecord, PartitionRecord
from headrace.model.topic_configs import LONG_MAX
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import wait_until_set
from headrace.storage.log.flusher import Flusher
from headrace.storage.log.follower_batches import check_follower_batches
from headrace.wire.batches.batch import BatchHeader
from headrace.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

log = logging.getLogger(__name__)

_EPOCH_MAX = (1 << 31) - 1
_CONNECTION_KEY = "replication"
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 10.0

SpawnTask = Callable[[Coroutine[Any, Any, None], str], object]


class FollowerSession:
    """The follower's side of an incremental fetch session."""

    def __init__(self, node_id: int, broker_epoch: int) -> None:
        self._replica = ReplicaState(replica_id=node_id, replica_epoch=broker_epoch)
        self._id = 0
        self._epoch = 0
        self._sent: dict[tuple[UUID, int], tuple[FollowedPartition, tuple[int, ...]]] = {}

    def reset(self) -> None:
        """Start a new session with the next request, because the leader may not know the current one."""
        self._id = self._epoch = 0
        self._sent.clear()

    def request(self, wanted: Sequence[FollowedPartition], config: BrokerConfig) -> FetchRequest:
        """Build a fetch request for exactly these partitions from their current positions."""
        if self._epoch == 0:
            self._sent.clear()
        topics: dict[UUID, FetchTopic] = {}
        keys = set[tuple[UUID, int]]()
        for followed in wanted:
            partition = followed.partition
            key = partition.topic_id, partition.index
            keys.add(key)
            position = _fetch_position(followed)
            if self._sent.get(key) == (followed, position):
                continue
            self._sent[key] = followed, position
            topic = topics.setdefault(partition.topic_id, FetchTopic(topic_id=partition.topic_id))
            leader_epoch, fetch_offset, last_epoch, start_offset = position
            topic.partitions.append(
                FetchPartition(
                    partition=partition.index,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=fetch_offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=start_offset,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        return FetchRequest(
            replica_state=self._replica,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=self._forget(self._sent.keys() - keys),
        )

    def partitions(self, response: FetchResponse) -> Iterator[tuple[FollowedPartition, PartitionData]]:
        self._id = response.session_id
        self._epoch = 0 if not self._id else self._epoch % _EPOCH_MAX + 1
        for topic in response.responses:
            for data in topic.partitions:
                sent = self._sent.get((topic.topic_id, data.partition_index))
                if sent is not None:
                    yield sent[0], data

    def _forget(self, keys: Iterable[tuple[UUID, int]]) -> list[ForgottenTopic]:
        topics: dict[UUID, ForgottenTopic] = {}
        for key in sorted(keys):
            del self._sent[key]
            topics.setdefault(key[0], ForgottenTopic(topic_id=key[0])).partitions.append(key[1])
        return list(topics.values())


def _fetch_position(followed: FollowedPartition) -> tuple[int, int, int, int]:
    """Return the leader epoch, the fetch offset, the epoch of the last batch and the log start offset."""
    log = followed.partition.log
    is_empty = log.end_offset == log.start_offset  # an empty log cannot diverge from the leader's
    last_epoch = -1 if is_empty else log.epochs.epoch_at(log.end_offset - 1)
    return followed.leader_epoch, log.end_offset, last_epoch, log.start_offset


@dataclass(eq=False, slots=True)
class FollowedPartition:
    """A partition that is replicated in one leader epoch. `not_before` is when to retry after an error."""

    partition: Partition
    leader_epoch: int
    unclean_epoch: int
    is_joining: bool
    not_before: float = 0.0

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return not partition.is_leader and not partition.is_retired and partition.leader_epoch == self.leader_epoch


class ReplicaFetcher:
    def __init__(
        self,
        peers: Peers,
        flusher: Flusher,
        config: Callable[[], BrokerConfig],
        catching_up: RateLimiter,
        clock: Clock,
        node_id: int,
        broker_epoch: int,
        leader_id: int,
    ) -> None:
        self._is_failing = False
        self._leader_id = leader_id
        self._peers = peers
        self._flusher = flusher
        self._config = config
        self._catching_up = catching_up  # shared with the fetchers of other leaders
        self._clock = clock
        self._followed: dict[Partition, FollowedPartition] = {}
        self._session = FollowerSession(node_id, broker_epoch)
        self._wake = asyncio.Event()

    def add(self, followed: FollowedPartition) -> None:
        known = self._followed.get(followed.partition)
        if known is not None and known.leader_epoch == followed.leader_epoch:
            known.is_joining = followed.is_joining
            return
        self._followed[followed.partition] = followed
        self._wake.set()

    def remove(self, partition: Partition) -> None:
        self._followed.pop(partition, None)

    async def run(self) -> None:
        """Replicate until cancelled; retry if the leader is not reachable."""
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            ready = [
                followed
                for followed in self._followed.values()
                if followed.not_before <= now and followed.partition.log.usable
                if not followed.is_joining or self._catching_up.is_free(now)
            ]
            if not ready:
                await wait_until_set(self._wake, _PAUSE_SECONDS if self._followed else None)
                continue
            try:
                await self._fetch(ready)
                self._is_failing = False
            except StorageFailure as error:
                log.error("replication failed leader=%d error=%s", self._leader_id, error)
                await wait_until_set(self._wake, _PAUSE_SECONDS)
            except HeadraceError as error:
                if not self._is_failing:
                    log.warning("fetch from the leader failed leader=%d error=%s", self._leader_id, error)
                self._is_failing = True
                self._session.reset()
                await wait_until_set(self._wake, _PAUSE_SECONDS)

    async def _fetch(self, ready: list[FollowedPartition]) -> None:
        config = self._config()
        limit = config.follower_replication_throttled_rate
        self._catching_up.per_second = None if limit == LONG_MAX else limit
        for followed in ready:
            # Topics with flush.messages > 1 are not flushed first; their fetches do not guarantee durability either.
            own_log = followed.partition.log
            if own_log.flushed_offset < own_log.end_offset and followed.partition.config.flush_messages <= 1:
                await self._flusher.flush(own_log)
        request = self._session.request(ready, config)
        response: FetchResponse = await self._peers.call(
            self._leader_id,
            request,
            timeout_seconds=config.replica_fetch_wait_max_ms / 1000 + _GRACE_SECONDS,
            connection_key=_CONNECTION_KEY,
        )
        if response.error_code in (FetchSessionIdNotFound.code, InvalidFetchSessionEpoch.code):
            self._session.reset()
            return
        for followed, data in self._session.partitions(response):
            try:
                await self._process(followed, data)
            except HeadraceError as error:
                log.warning("replication of a partition failed partition=%s error=%s", followed.partition, error)
                followed.not_before = self._clock.monotonic() + _PAUSE_SECONDS

    async def _process(self, followed: FollowedPartition, data: PartitionData) -> None:
        partition = followed.partition
        if not followed.is_current or self._followed.get(partition) is not followed:
            # The leader considers this response delivered, and its fetch session would not repeat it.
            self._session.reset()
            return
        if data.error_code == OffsetOutOfRange.code:
            await self._reset_log(followed)
            return
        if data.error_code:
            # The leader or this follower does not know the newest epoch yet; the registry will notify it.
            followed.not_before = self._clock.monotonic() + _PAUSE_SECONDS
            return
        if data.diverging_epoch is not None:
            await self._truncate(followed, data.diverging_epoch)
            return
        if data.records:
            assert isinstance(data.records, bytes | bytearray | memoryview)
            copied = check_follower_batches(memoryview(data.records))
            await self._restart_at_batch(followed, copied.headers[0])
            if not followed.is_current:
                self._session.reset()
                return
            partition.log.append_as_follower(copied)
            if followed.is_joining:
                self._catching_up.take(len(data.records), self._clock.monotonic())
            if partition.log.flush_due():
                self._flusher.mark(partition.log)
        partition.follow_high_watermark(data.high_watermark)
        if data.log_start_offset > partition.log.start_offset:
            await self._trim(followed, data)

    async def _truncate(self, followed: FollowedPartition, diverging: EpochEndOffset) -> None:
        """Truncate a diverging log towards the point of divergence, as far as one response determines it."""
        partition = followed.partition
        async with partition.changing:
            if not followed.is_current:
                return
            own_log = partition.log
            _, own_end = own_log.epochs.end_offset_for(diverging.epoch, own_log.end_offset)
            offset = min(diverging.end_offset, own_end if own_end >= 0 else own_log.start_offset)
            is_unclean = followed.unclean_epoch >= 0 and own_log.epochs.latest < followed.unclean_epoch
            assert offset >= partition.high_watermark or is_unclean, (
                f"{partition} would be truncated to {offset}, below its high watermark {partition.high_watermark} (I7)"
            )
            if offset >= own_log.end_offset:
                return
            log.info("truncating the log partition=%s from=%d to=%d", partition, own_log.end_offset, offset)
            if offset <= own_log.start_offset:
                await own_log.reset(own_log.start_offset)
            else:
                await own_log.truncate(offset)
            partition.on_truncated()

    async def _reset_log(self, followed: FollowedPartition) -> None:
        """Reset the log to the leader's log start offset: the leader no longer has or never had the next record, or the
        local log is empty and starts above the leader's log without a common history."""
        partition = followed.partition
        start = await self._leader_start(followed)
        async with partition.changing:
            if not followed.is_current:
                return
            own_log = partition.log
            if start <= own_log.end_offset and own_log.end_offset > own_log.start_offset:
                raise OffsetOutOfRange(
                    f"the leader has no record at {own_log.end_offset}, although its log starts at {start}"
                )
            log.info("log reset to the leader's log start partition=%s offset=%d", partition, start)
            await own_log.reset(start)
            partition.on_truncated()

    async def _restart_at_batch(self, followed: FollowedPartition, first: BatchHeader) -> None:
        """Restart an empty log at the base offset of the first batch if the leader's log starts inside that batch.

        An empty log begins at the leader's log start offset, which DeleteRecords and acked retention may put anywhere,
        but batches are replicated whole: without this, the append would be rejected forever. The records below the
        leader's log start offset are trimmed right after the append, before the next fetch.
        """
        partition = followed.partition
        own_log = partition.log
        if own_log.end_offset > own_log.start_offset or not first.base_offset < own_log.end_offset <= first.last_offset:
            return
        async with partition.changing:
            if followed.is_current:
                await own_log.reset(first.base_offset)
                partition.on_truncated()

    async def _leader_start(self, followed: FollowedPartition) -> int:
        partition = followed.partition
        (result,) = await self._peers.log_start_offsets(
            self._leader_id, partition.topic, {partition.index: followed.leader_epoch}, _GRACE_SECONDS
        )
        if result.error_code:
            raise OffsetOutOfRange(f"the leader did not return its log start offset: error {result.error_code}")
        return result.offset

    async def _trim(self, followed: FollowedPartition, data: PartitionData) -> None:
        """Delete what the leader has deleted. A follower applies no retention of its own."""
        partition = followed.partition
        async with partition.changing:
            if followed.is_current:
                await partition.log.advance_start(min(data.log_start_offset, partition.log.end_offset))
                partition.follow_high_watermark(data.high_watermark)


class FollowerFetchers:
    """The fetchers of all followed partitions, one for each broker that leads any of them."""

    def __init__(
        self,
        peers: Peers,
        flusher: Flusher,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        spawn: SpawnTask,
        node_id: int,
        broker_epoch: int,
    ) -> None:
        self._make_fetcher = partial(
            ReplicaFetcher, peers, flusher, config, RateLimiter(), clock, node_id, broker_epoch
        )
        self._spawn = spawn
        self._node_id = node_id
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Partition, int] = {}

    def follow(self, partition: Partition, leader: BrokerRecord, record: PartitionRecord) -> None:
        """Replicate a partition from this leader, in its current leader epoch."""
        if self._leaders.get(partition) != leader.node_id:
            self.drop(partition)
        self._leaders[partition] = leader.node_id
        fetcher = self._fetchers.get(leader.node_id)
        if fetcher is None:
            fetcher = self._fetchers[leader.node_id] = self._make_fetcher(leader.node_id)
            self._spawn(fetcher.run(), f"replication from broker {leader.node_id}")
        is_joining = self._node_id not in record.isr
        fetcher.add(FollowedPartition(partition, record.leader_epoch, record.unclean_epoch, is_joining))

    def drop(self, partition: Partition) -> None:
        node_id = self._leaders.pop(partition, None)
        if node_id is not None:
            self._fetchers[node_id].remove(partition)
