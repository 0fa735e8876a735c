"""The log behind the group coordinator: `__consumer_offsets`, in Kafka's record format, so that its tools can read it.

What is appended here is the truth; the coordinator's maps are rebuilt from it at every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from headrace.broker.catalogue import Catalogue
from headrace.broker.partition import Partition
from headrace.broker.state_log import COMMIT_SECONDS, KeyValue, StateLog, StoredMarker, StoredRecord
from headrace.machines.offsets import Transaction
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTransactionState,
)
from headrace.model.names import CONSUMER_OFFSETS
from headrace.runtime.clock import Clock
from headrace.wire.batch import TRANSACTIONAL, Record, build_batch, parse_header


class OffsetsLog:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._log = StateLog(catalogue, clock, CONSUMER_OFFSETS)
        self.on_marker: Callable[[Transaction, bool], None] | None = None
        """Told when a transaction that has commits here has ended, and whether they count."""
        # Markers that were appended before the log was read to its end: the reader may have passed them by.
        self._early: list[StoredMarker] | None = []

    async def ensure(self) -> None:
        """Make the topic when the first group shows up."""
        config = self._catalogue.config
        await self._log.ensure(
            config.offsets_topic_num_partitions, {"segment.bytes": str(config.offsets_topic_segment_bytes)}
        )
        self._listen()

    def append(self, group_id: str, records: Sequence[KeyValue]) -> asyncio.Future[None] | None:
        """Append in one batch; None when it is committed already, else what to wait for by `durable`."""
        end_offset = self._log.append(group_id, records)
        return self._wait(self.partition_of(group_id), end_offset)

    def append_transactional(
        self, group_id: str, records: Sequence[KeyValue], producer_id: int, producer_epoch: int
    ) -> asyncio.Future[None] | None:
        """The same as part of a producer's transaction: it counts when the transaction is committed."""
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            attributes=TRANSACTIONAL,
        )
        partition = self.partition_of(group_id)
        try:
            appended = partition.append_unnumbered(memoryview(batch), parse_header(batch), now_ms)
        except (InvalidProducerEpoch, InvalidTransactionState):
            raise
        except HeadraceError as error:
            raise _not_available(error) from error
        return self._wait(partition, appended.end_offset)

    def settled(self, group_id: str) -> asyncio.Future[None] | None:
        """None when all that was appended for this group is committed, else what to wait for by `durable`."""
        if self._catalogue.find(CONSUMER_OFFSETS) is None:
            return None
        partition = self.partition_of(group_id)
        return self._wait(partition, partition.log.end_offset)

    async def replay(self) -> AsyncIterator[StoredRecord | StoredMarker]:
        """Every record from the start of every partition; of a damaged one, what stands before the damage."""
        self._listen()
        async for stored in self._log.replay():
            yield stored
        early, self._early = self._early or [], None
        for marker in early:
            yield marker

    def ensure_readable(self, group_id: str) -> None:
        """A group whose records are damaged must not look like one that never committed: its readers would begin
        anew."""
        self._log.ensure_readable(group_id)

    def partition_of(self, group_id: str) -> Partition:
        """Where everything of this group lies. The log must have been `ensure`d."""
        return self._log.partition_of(group_id)

    def _wait(self, partition: Partition, end_offset: int) -> asyncio.Future[None] | None:
        try:
            return partition.committed(end_offset, self._clock.monotonic() + COMMIT_SECONDS)
        except HeadraceError as error:
            raise _not_available(error) from error

    def _listen(self) -> None:
        """Have the markers told that end transactions with commits in this log."""
        topic = self._catalogue.find(CONSUMER_OFFSETS)
        for partition in topic.partitions if topic is not None else ():
            if partition.on_marker is None:
                partition.on_marker = partial(self._on_marker, partition.index)

    def _on_marker(self, index: int, producer_id: int, is_commit: bool) -> None:
        if self._early is not None:
            self._early.append(StoredMarker((index, producer_id), is_commit))
        elif self.on_marker is not None:
            self.on_marker((index, producer_id), is_commit)


async def durable(wait: asyncio.Future[None] | None) -> None:
    """Return when an append is committed."""
    try:
        if wait is not None:
            await wait
    except HeadraceError as error:
        raise _not_available(error) from error


def _not_available(error: HeadraceError) -> CoordinatorNotAvailable:
    """A member that hears of a full disk gives up; one that hears that its coordinator is away comes again."""
    return CoordinatorNotAvailable(f"the log of groups and offsets takes no writes: {error.message}")
