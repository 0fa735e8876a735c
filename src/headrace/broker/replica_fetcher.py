"""Replicate the partitions that one other broker leads: fetch, append, flush, and only then send the next fetch.

Therefore the offset of a fetch guarantees to the leader that all records below it are on the follower's disk. The
leader's log is authoritative. The leader detects divergence by the epoch of the follower's last batch, and the follower
truncates its log to the point of divergence, not to its own high watermark. It truncates below the high watermark only
after an unclean election, which an operator has requested.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.follower_session import FollowerSession
from headrace.broker.partition import Partition
from headrace.broker.peers import Peers
from headrace.machines.rate import Rate
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    FetchSessionIdNotFound,
    HeadraceError,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    StorageFailure,
)
from headrace.model.replication_configs import LONG_MAX
from headrace.runtime.clock import Clock
from headrace.storage.copying import check_copied
from headrace.storage.flusher import Flusher
from headrace.wire.batch import BatchHeader
from headrace.wire.messages.fetch import EpochEndOffset, FetchResponse, PartitionData
from headrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

_LANE = "replication"
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_EARLIEST_LOCAL = -4


@dataclass(eq=False, slots=True)
class Followed:
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
        leader_id: int,
        peers: Peers,
        flusher: Flusher,
        config: Callable[[], BrokerConfig],
        catching_up: Rate,
        clock: Clock,
        node_id: int,
        broker_epoch: int,
    ) -> None:
        self.is_failing = False
        self._leader_id = leader_id
        self._peers = peers
        self._flusher = flusher
        self._config = config
        self._catching_up = catching_up  # shared with the fetchers of other leaders
        self._clock = clock
        self._followed: dict[Partition, Followed] = {}
        self._session = FollowerSession(node_id, broker_epoch)
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, followed: Followed) -> None:
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
                await self._pause(_PAUSE_SECONDS if self._followed else None)
                continue
            try:
                await self._copy(ready)
                self.is_failing = False
            except StorageFailure as error:
                log.error("replication failed leader=%d error=%s", self._leader_id, error)
                await self._pause(_PAUSE_SECONDS)
            except HeadraceError as error:
                if not self.is_failing:
                    log.warning("fetch from the leader failed leader=%d error=%s", self._leader_id, error)
                self.is_failing = True
                self._session.reset()
                await self._pause(_PAUSE_SECONDS)

    async def _pause(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _copy(self, ready: list[Followed]) -> None:
        config = self._config()
        limit = config.follower_replication_throttled_rate
        self._catching_up.per_second = None if limit == LONG_MAX else limit
        for followed in ready:
            # Topics with flush.messages > 1 are not flushed first; their fetches do not guarantee durability either.
            ours = followed.partition.log
            if ours.flushed_offset < ours.end_offset and followed.partition.config.flush_messages <= 1:
                await self._flusher.flush(ours)
        request = self._session.request(ready, config)
        response: FetchResponse = await self._peers.call(
            self._leader_id,
            request,
            timeout_seconds=config.replica_fetch_wait_max_ms / 1000 + _GRACE_SECONDS,
            lane=_LANE,
        )
        if response.error_code in (FetchSessionIdNotFound.code, InvalidFetchSessionEpoch.code):
            self._session.reset()
            return
        for followed, data in self._session.answers(response):
            try:
                await self._take(followed, data)
            except HeadraceError as error:
                partition = followed.partition
                log.warning(
                    "replication of a partition failed partition=%s-%d error=%s",
                    partition.topic,
                    partition.index,
                    error,
                )
                followed.not_before = self._clock.monotonic() + _PAUSE_SECONDS

    async def _take(self, followed: Followed, data: PartitionData) -> None:
        """Process the response of the leader for one partition."""
        partition = followed.partition
        if not followed.is_current or self._followed.get(partition) is not followed:
            # The leader considers this response delivered, and its fetch session would not repeat it.
            self._session.reset()
            return
        if data.error_code == OffsetOutOfRange.code:
            await self._begin_anew(followed)
            return
        if data.error_code:
            # The leader or this follower does not know the newest epoch yet; the registry will notify it.
            followed.not_before = self._clock.monotonic() + _PAUSE_SECONDS
            return
        if data.diverging_epoch is not None:
            await self._cut(followed, data.diverging_epoch)
            return
        if data.records:
            assert isinstance(data.records, bytes | bytearray | memoryview)
            copied = check_copied(memoryview(data.records))
            await self._restart_at_batch(followed, copied.headers[0])
            if not followed.is_current:
                self._session.reset()
                return
            partition.log.append_copied(copied)
            if followed.is_joining:
                self._catching_up.take(len(data.records), self._clock.monotonic())
            if partition.log.flush_due():
                self._flusher.mark(partition.log)
        partition.follow_watermark(data.high_watermark)
        if data.log_start_offset > partition.log.start_offset:
            await self._trim(followed, data)

    async def _cut(self, followed: Followed, diverging: EpochEndOffset) -> None:
        """Truncate a diverging log towards the point of divergence, as far as one response determines it."""
        partition = followed.partition
        async with partition.changing:
            if not followed.is_current:
                return
            ours = partition.log
            _, our_end = ours.epochs.end_offset_for(diverging.epoch, ours.end_offset)
            offset = min(diverging.end_offset, our_end if our_end >= 0 else ours.start_offset)
            is_unclean = followed.unclean_epoch >= 0 and ours.epochs.latest < followed.unclean_epoch
            assert offset >= partition.high_watermark or is_unclean, (
                f"{partition.topic}-{partition.index} would be truncated to {offset}, below its high watermark "
                f"{partition.high_watermark} (I7)"
            )
            if offset >= ours.end_offset:
                return
            log.info(
                "truncating the log partition=%s-%d from=%d to=%d",
                partition.topic,
                partition.index,
                ours.end_offset,
                offset,
            )
            if offset <= ours.start_offset:
                await ours.restart_at(ours.start_offset)
            else:
                await ours.truncate(offset)
            partition.was_cut()

    async def _begin_anew(self, followed: Followed) -> None:
        """Reset the log to the leader's log start offset: the leader no longer has or never had the next record, or the
        local log is empty and starts above the leader's log without a common history."""
        partition = followed.partition
        start = await self._leader_start(followed)
        async with partition.changing:
            if not followed.is_current:
                return
            ours = partition.log
            if start <= ours.end_offset and ours.end_offset > ours.start_offset:
                raise OffsetOutOfRange(
                    f"the leader has no record at {ours.end_offset}, although its log starts at {start}"
                )
            log.info(
                "log reset to the leader's log start partition=%s-%d offset=%d", partition.topic, partition.index, start
            )
            await ours.restart_at(start)
            partition.was_cut()

    async def _restart_at_batch(self, followed: Followed, first: BatchHeader) -> None:
        """Restart an empty log at the base offset of the first batch if the leader's log starts inside that batch.

        An empty log begins at the leader's log start offset, which DeleteRecords and acked retention may put anywhere,
        but batches are replicated whole: without this, the append would be rejected forever. The records below the
        leader's log start offset are trimmed right after the append, before the next fetch.
        """
        partition = followed.partition
        ours = partition.log
        if ours.end_offset > ours.start_offset or not first.base_offset < ours.end_offset <= first.last_offset:
            return
        async with partition.changing:
            if followed.is_current:
                await ours.restart_at(first.base_offset)
                partition.was_cut()

    async def _leader_start(self, followed: Followed) -> int:
        asked = ListOffsetsPartition(
            partition_index=followed.partition.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=_EARLIEST_LOCAL,
        )
        response: ListOffsetsResponse = await self._peers.call(
            self._leader_id,
            ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=followed.partition.topic, partitions=[asked])]
            ),
            timeout_seconds=_GRACE_SECONDS,
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise OffsetOutOfRange(f"the leader did not return its log start offset: error {answer.error_code}")
        return answer.offset

    async def _trim(self, followed: Followed, data: PartitionData) -> None:
        """Delete what the leader has deleted. A follower applies no retention of its own."""
        partition = followed.partition
        async with partition.changing:
            if followed.is_current:
                await partition.log.advance_start(min(data.log_start_offset, partition.log.end_offset))
                partition.follow_watermark(data.high_watermark)
