"""The markers of transactions that are decided: each of their partitions is told, however long that takes.

A marker counts when it is on disk, also where a topic does not otherwise wait for its disk: a transaction that its
coordinator holds for ended must not be open again after a power cut. A partition that was told is not told twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from headrace.broker.catalogue import Catalogue
from headrace.broker.partition import Partition
from headrace.machines.transaction_state import Producer, TopicPartition, Transaction
from headrace.model.errors import HeadraceError, InvalidProducerEpoch, UnknownTopicOrPartition
from headrace.runtime.clock import Clock
from headrace.storage.log import Log

log = logging.getLogger(__name__)

_COMMIT_SECONDS = 5.0
_PAUSE_SECONDS_MIN = 0.1
_PAUSE_SECONDS_MAX = 30.0


def pauses() -> Iterator[float]:
    """How long to wait between attempts at something that must be done in the end."""
    pause = _PAUSE_SECONDS_MIN
    while True:
        yield pause
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


class TransactionMarkers:
    def __init__(self, catalogue: Catalogue, flush: Callable[[Log], Awaitable[None]], clock: Clock) -> None:
        self._catalogue = catalogue
        self._flush = flush
        self._clock = clock

    async def tell_all(self, transaction: Transaction, coordinator_epoch: int) -> None:
        """Return when every partition of the transaction that still exists knows the outcome, durably."""
        async with asyncio.TaskGroup() as tasks:
            for where in sorted(transaction.partitions):
                tasks.create_task(self._tell(where, transaction, coordinator_epoch))

    async def write(self, partition: Partition, producer: Producer, coordinator_epoch: int, *, is_commit: bool) -> None:
        """Append one marker, and return when it is durable."""
        appended = partition.append_marker(
            producer.id, producer.epoch, is_commit, coordinator_epoch, self._clock.now_ms()
        )
        await self._durable(partition, appended.end_offset)

    async def _tell(self, where: TopicPartition, transaction: Transaction, coordinator_epoch: int) -> None:
        """Tell one partition, again and again until it has taken it. It holds up nobody but its own transaction."""
        for pause in pauses():
            try:
                partition = self._catalogue.partition(*where)
            except UnknownTopicOrPartition:
                return
            try:
                await self._try_to_tell(partition, transaction, coordinator_epoch)
                return
            except HeadraceError as error:
                if partition.is_retired:
                    return
                log.error(
                    "%s-%d does not take the end of the transaction of %s, which its readers wait for: %s",
                    *where,
                    transaction.transactional_id,
                    error,
                )
            await asyncio.sleep(pause)

    async def _try_to_tell(self, partition: Partition, transaction: Transaction, coordinator_epoch: int) -> None:
        producer = transaction.producer
        if partition.has_marker(producer.id, producer.epoch):
            # By an attempt before this one, or before a crash: it may still be on its way to the disk.
            await self._durable(partition, partition.log.end_offset)
            return
        try:
            await self.write(partition, producer, coordinator_epoch, is_commit=transaction.is_commit)
        except InvalidProducerEpoch as error:
            # A newer epoch of this producer has written here, and it cannot have done so in the midst of this one.
            log.error("%s-%d knows of a later transaction already: %s", partition.topic, partition.index, error)

    async def _durable(self, partition: Partition, end_offset: int) -> None:
        wait = partition.committed(end_offset, self._clock.monotonic() + _COMMIT_SECONDS)
        if wait is not None:
            await wait
        if partition.log.flushed_offset < end_offset:
            await self._flush(partition.log)
