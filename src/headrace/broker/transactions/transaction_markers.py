"""Write the markers of decided transactions to all their partitions, with unlimited retries.

- Partitions that this broker leads are written directly, others with a request to their leader. If the leader changes,
  the next attempt goes to the new leader.
- A marker counts when it is committed and on the leader's disk, even if the topic does not otherwise wait for the disk:
  a transaction that its coordinator considers ended must not be open again after a power failure.
- A marker is not written again to a partition that has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from headrace.broker.cluster.peers import Peers
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_records import partitions_by_topic
from headrace.broker.transactions.verified_transactions import VerifiedTransactions
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TopicPartition, TransactionMetadata
from headrace.model.errors import HeadraceError, InvalidProducerEpoch, NotLeader, UnknownTopicOrPartition
from headrace.runtime.clock import Clock
from headrace.storage.log.log import Log
from headrace.wire.batches.batch import Marker, build_marker, parse_header
from headrace.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)

KEEPS_EPOCH, BUMPS_EPOCH = 1, 2  # Kafka's transaction versions: the effect of an end on the producer's epoch

_COMMIT_SECONDS = 5.0
_CALL_SECONDS = 10.0
_PAUSE_SECONDS_MIN = 0.1
_PAUSE_SECONDS_MAX = 5.0
# Partitions that failed may block for long on the other broker, and must not delay the others.
_CONNECTION_KEY, _RETRY_CONNECTION_KEY = "markers", "markers again"


def retry_pauses() -> Iterator[float]:
    """Pauses between the attempts of an operation that must succeed in the end."""
    pause = _PAUSE_SECONDS_MIN
    while True:
        yield pause
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


class TransactionOutcome(NamedTuple):
    """The outcome of a transaction. If it `bumps_epoch`, the producer uses this epoch for its next transaction."""

    producer: ProducerIdAndEpoch
    coordinator_epoch: int
    is_commit: bool
    bumps_epoch: bool


class TransactionMarkers:
    def __init__(
        self,
        catalogue: Catalogue,
        peers: Peers,
        verified: VerifiedTransactions,
        flush: Callable[[Log], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._peers = peers
        self._verified = verified
        self._flush = flush
        self._clock = clock

    async def write_all(self, transaction: TransactionMetadata, coordinator_epoch: int) -> None:
        """Return when every partition of the transaction that still exists durably has the marker."""
        outcome = TransactionOutcome(
            transaction.producer, coordinator_epoch, transaction.is_commit, bumps_epoch=transaction.previous is not None
        )
        missing: Collection[TopicPartition] = transaction.partitions
        connection_key = _CONNECTION_KEY
        for pause in retry_pauses():
            failed = await self._try_write_markers(missing, outcome, connection_key)
            if not failed:
                return
            for (topic, index), error in failed.items():
                log.error(
                    "writing a transaction marker failed; read_committed consumers wait partition=%s-%d "
                    "transactional_id=%s error=%s",
                    topic,
                    index,
                    transaction.transactional_id,
                    error,
                )
            await asyncio.sleep(pause)
            missing, connection_key = failed, _RETRY_CONNECTION_KEY

    async def write_marker(self, partition: Partition, outcome: TransactionOutcome) -> None:
        """Write the marker to a partition led by this broker unless it has it; return when it is durable."""
        producer = outcome.producer
        self._verified.forget(partition, producer.id)
        if partition.state.producers.has_marker(producer.id, producer.epoch):
            # Written by an earlier attempt or before a crash, and perhaps not on the disk yet.
            _check_epoch(partition, outcome, producer.epoch)
            await self._durable(partition, partition.log.end_offset)
            return
        if outcome.bumps_epoch:
            # The partition must not know this epoch yet. If it does, this marker is an old one, and the open
            # transaction is the producer's next one.
            _check_epoch(partition, outcome, producer.epoch - 1)
        appended = partition.append_marker(
            producer.id, producer.epoch, outcome.is_commit, outcome.coordinator_epoch, self._clock.now_ms()
        )
        await self._durable(partition, appended.end_offset)

    async def _try_write_markers(
        self, partitions: Collection[TopicPartition], outcome: TransactionOutcome, connection_key: str
    ) -> dict[TopicPartition, HeadraceError]:
        """Make one attempt for all partitions; return those that failed, with their errors."""
        failed: dict[TopicPartition, HeadraceError] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        async with asyncio.TaskGroup() as tasks:
            for where in sorted(partitions):
                try:
                    self._catalogue.partition(*where)
                    tasks.create_task(self._write_marker_here(where, outcome, failed))
                except NotLeader as error:
                    leader = self._catalogue.leader_node(*where)
                    if leader is None:
                        failed[where] = error
                    else:
                        by_node.setdefault(leader.node_id, []).append(where)
                except UnknownTopicOrPartition:
                    continue  # deleted: no consumer waits for its marker
            for node_id, there in by_node.items():
                tasks.create_task(self._send_markers(node_id, there, outcome, connection_key, failed))
        return failed

    async def _write_marker_here(
        self, where: TopicPartition, outcome: TransactionOutcome, failed: dict[TopicPartition, HeadraceError]
    ) -> None:
        try:
            await self.write_marker(self._catalogue.partition(*where), outcome)
        except HeadraceError as error:
            _record_error(where, error, failed)

    async def _send_markers(
        self,
        node_id: int,
        partitions: Sequence[TopicPartition],
        outcome: TransactionOutcome,
        connection_key: str,
        failed: dict[TopicPartition, HeadraceError],
    ) -> None:
        """Send the markers of these partitions to their leader."""
        from headrace.client.errors import error_of_code  # imported on first use: keeps startup fast

        marker = WritableTxnMarker(
            producer_id=outcome.producer.id,
            producer_epoch=outcome.producer.epoch,
            transaction_result=outcome.is_commit,
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in partitions_by_topic(frozenset(partitions)).items()
            ],
            coordinator_epoch=outcome.coordinator_epoch,
            transaction_version=BUMPS_EPOCH if outcome.bumps_epoch else KEEPS_EPOCH,
        )
        try:
            response = await self._peers.call(
                node_id,
                WriteTxnMarkersRequest(markers=[marker]),
                timeout_seconds=_CALL_SECONDS,
                connection_key=connection_key,
            )
        except HeadraceError as error:
            failed.update(dict.fromkeys(partitions, error))
            return
        codes = _error_codes(response)
        for where in partitions:
            code = codes.get(where, UnknownTopicOrPartition.code)
            if code:
                _record_error(where, error_of_code(code, f"broker {node_id} answers with error code {code}"), failed)

    async def _durable(self, partition: Partition, end_offset: int) -> None:
        wait = partition.committed(end_offset, self._clock.monotonic() + _COMMIT_SECONDS)
        if wait is not None:
            await wait
        if partition.log.flushed_offset < end_offset:
            await self._flush(partition.log)


def _check_epoch(partition: Partition, outcome: TransactionOutcome, producer_epoch: int) -> None:
    """Raise if a marker of this epoch is too late."""
    marker = Marker(outcome.is_commit, outcome.coordinator_epoch)
    header = parse_header(build_marker(outcome.producer.id, producer_epoch, marker, 0))
    partition.state.producers.check_marker(header, outcome.coordinator_epoch)


def _record_error(where: TopicPartition, error: HeadraceError, failed: dict[TopicPartition, HeadraceError]) -> None:
    if isinstance(error, InvalidProducerEpoch):
        # The producer has written with a newer epoch, so the partition already has the marker of this transaction.
        log.error("marker skipped, the producer has a later transaction partition=%s-%d error=%s", *where, error)
    else:
        failed[where] = error


def _error_codes(response: WriteTxnMarkersResponse) -> dict[TopicPartition, int]:
    return {
        (topic.name, result.partition_index): result.error_code
        for marker in response.markers
        for topic in marker.topics
        for result in topic.partitions
    }
