"""The log behind the group coordinator, `__consumer_offsets`.

The log is authoritative; the coordinator rebuilds the state of a partition from it in each leadership. A shard appends
with the `OffsetsLogPartition` of its own leadership: its decisions may be wrong in a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from headrace.broker.coordination.state_log import (
    COMMIT_SECONDS,
    KeyValue,
    StateLog,
    StoredRecord,
    StoredTransactionMarker,
)
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotCoordinator,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.model.names import CONSUMER_OFFSETS
from headrace.runtime.clock import Clock
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch, parse_header


class OffsetsLog(StateLog):
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        super().__init__(catalogue, clock, CONSUMER_OFFSETS)

    async def ensure(self) -> None:
        config = self.catalogue.config
        await self.ensure_topic(
            config.offsets_topic_num_partitions,
            {"segment.bytes": str(config.offsets_topic_segment_bytes)},
            config.offsets_topic_replication_factor,
        )


class OffsetsLogPartition:
    """One partition of the log for one leadership. Afterwards it `is_over`, even if this broker leads the partition
    again."""

    def __init__(self, offsets_log: OffsetsLog, partition: Partition) -> None:
        self.partition = partition
        self.is_over = False
        self._log = offsets_log
        self._clock = offsets_log.clock

    def ensure_leader(self) -> None:
        if self.is_over:
            raise NotCoordinator(f"this broker no longer leads {CONSUMER_OFFSETS}-{self.partition.index}")

    def load(self) -> AsyncIterator[StoredRecord | StoredTransactionMarker]:
        return self._log.load(self.partition)

    def append(self, group_id: str, records: Sequence[KeyValue]) -> asyncio.Future[None] | None:
        """Append in one batch; return None if it is already committed, else the future for `wait_until_durable`."""
        self._ensure_writable()
        return self._wait(self._log.append(group_id, records))

    def append_transactional(
        self, records: Sequence[KeyValue], producer_id: int, producer_epoch: int
    ) -> asyncio.Future[None] | None:
        """Like `append`, as part of a producer's transaction."""
        self._ensure_writable()
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [BatchRecord(key=key, value=value, timestamp_ms=now_ms) for key, value in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            attributes=TRANSACTIONAL,
        )
        try:
            appended = self.partition.append_unnumbered(memoryview(batch), parse_header(batch))
        except (InvalidProducerEpoch, InvalidTransactionState):
            raise
        except HeadraceError as error:
            raise as_coordinator_error(error) from error
        return self._wait(appended.end_offset)

    def settled(self) -> asyncio.Future[None] | None:
        """Return None if everything in the log is committed, else the future for `wait_until_durable`."""
        self.ensure_leader()
        return self._wait(self.partition.log.end_offset)

    def _wait(self, end_offset: int) -> asyncio.Future[None] | None:
        try:
            return self.partition.committed(end_offset, self._clock.monotonic() + COMMIT_SECONDS)
        except HeadraceError as error:
            raise as_coordinator_error(error) from error

    def _ensure_writable(self) -> None:
        """Raise unless an append can be committed now."""
        self.ensure_leader()
        try:
            self.partition.ensure_min_isr()
        except HeadraceError as error:
            raise as_coordinator_error(error) from error


async def wait_until_durable(wait: asyncio.Future[None] | None) -> None:
    """Return when an append is committed."""
    try:
        if wait is not None:
            await wait
    except HeadraceError as error:
        raise as_coordinator_error(error) from error


def as_coordinator_error(error: HeadraceError) -> HeadraceError:
    """Translate an error of the log for group members: they give up on a full disk, but retry if the coordinator is
    unavailable, and look for the new one if it has moved."""
    if isinstance(error, NotLeader | NotCoordinator | UnknownTopicOrPartition):
        return NotCoordinator(error.message)
    return CoordinatorNotAvailable(f"writing to __consumer_offsets failed: {error.message}")
