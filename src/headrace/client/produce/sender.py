"""Send the batches of partitions to their leaders, one Produce request per leader, and handle the responses.

- A response completes the batch of a partition, fails it, or lets it be retried after a pause.
- The sender never reorders batches and never drops one silently: every batch is written or fails.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.client.cluster import Cluster
from headrace.client.connections.transport import api_of_request, choose_version
from headrace.client.errors import DeliveryTimedOut, error_of_code, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.client.produce.pending_batches import PartitionBatchQueue, PendingBatch, ProducerIdentity
from headrace.model.errors import (
    DuplicateSequence,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRecords,
    MessageTooLarge,
    OutOfOrderSequence,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from headrace.model.message_headers import DEDUP_ID_REUSED
from headrace.runtime.tasks import Supervisor, wait_until_set
from headrace.wire.batches.batch import BatchRecord
from headrace.wire.batches.compression import NONE
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

ACKS_ALL = -1

_PRODUCER_STATE_LOST = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)
_TIMER_SLACK_SECONDS = 0.001  # timers may fire slightly early and must not be set again then
_NAMES_UNTIL = 12  # Produce names topics by id from version 13 on
_UNKNOWN_SERVER_ERROR = -1
_ENLISTS_UNTIL = 11  # from version 12 on the broker adds the partition to the transaction itself


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """`topic_wait_seconds`: how long a missing topic may still appear; None means as long as a record may wait at all.
    `isolate_invalid_records`: the records are from unrelated callers; an invalid one does not fail its whole batch, and
    a slow partition does not delay others."""

    batch_bytes_max: int
    delivery_timeout_seconds: float
    topic_wait_seconds: float | None
    acks: int = ACKS_ALL
    idempotent: bool = True
    compression: int = NONE
    linger_seconds: float = 0.0
    isolate_invalid_records: bool = False


class Wait(NamedTuple):
    """What the oldest record that is not acknowledged waits for, and since when (`Clock.monotonic`)."""

    what: str
    since: float


class BatchProducer(Protocol):
    """The producer of the batches: an open transaction, or a producer without one, with an empty transactional id."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def identity(self) -> ProducerIdentity: ...

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Return when the partitions are durably part of the transaction; batches may be sent only then."""


class TransactionContext(BatchProducer, Protocol):
    """The transaction that the batches are part of."""

    def set_abortable_error(self, error: HeadraceError) -> None:
        """A batch has failed, so the transaction can only be aborted."""


class _Queues(dict[TopicPartition, PartitionBatchQueue]):
    def __missing__(self, target: TopicPartition) -> PartitionBatchQueue:
        queue = self[target] = PartitionBatchQueue(target)
        return queue


class Sender:
    """Runs in the background of one producer. `settled` is called with every batch that was written or failed. In a
    transaction the identity is that of the transaction, and cannot be replaced when the broker does not know it any
    more."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SenderSettings,
        settled: Callable[[PendingBatch], None],
        transaction: TransactionContext | None = None,
    ) -> None:
        self._queues = _Queues()
        self._active_queues: dict[TopicPartition, PartitionBatchQueue] = {}  # those that are not empty
        self._cluster = cluster
        self._settings = settings
        self._settled = settled
        self._transaction = transaction
        self._wake = asyncio.Event()
        self._no_linger = False
        self._identity: ProducerIdentity | None = None
        self._identifying = asyncio.Lock()
        self._tasks = Supervisor()

    def start(self) -> None:
        self._spawn(self._run(), "producer sender")

    async def stop(self) -> None:
        await self._tasks.stop()

    def has_room(self, target: TopicPartition, size_bytes: int) -> bool:
        """Whether a record of this size would join a batch that is being filled."""
        queue = self._active_queues.get(target)
        return queue is not None and queue.has_room(size_bytes, self._settings.batch_bytes_max)

    def submit(
        self, target: TopicPartition, records: Sequence[BatchRecord], size_bytes: int, *, alone: bool = False
    ) -> PendingBatch:
        """Queue consecutive records at the end of one batch, which is returned."""
        queue = self._queues[target]
        batch = queue.append(records, size_bytes, self._cluster.clock, self._settings.batch_bytes_max, alone=alone)
        self._active_queues[target] = queue
        self._wake.set()
        return batch

    @property
    def pending(self) -> list[PendingBatch]:
        """All batches that are neither written nor failed."""
        return [batch for queue in self._active_queues.values() for batch in queue.batches]

    @property
    def oldest_wait(self) -> Wait | None:
        """None if all batches are written or failed."""
        queues = [queue for queue in self._active_queues.values() if queue.batches]
        if not queues:
            return None
        queue = min(queues, key=lambda queue: queue.batches[0].created_at)
        needs_id = self._settings.idempotent and queue.identity is None
        what = "a producer id from the broker" if needs_id else f"the acknowledgement of {queue.target}"
        why = "" if queue.last_error is None else f": {queue.last_error.message.rstrip('.')}"
        return Wait(f"{what}{why}", queue.batches[0].created_at)

    def set_no_linger(self, on: bool) -> None:
        self._no_linger = on
        self._wake.set()

    def abandon(self, error: BaseException) -> None:
        """Fail all batches; for when the sender has stopped."""
        for queue in self._active_queues.values():
            while queue.batches:
                queue.batches[0].in_doubt = True
                self._settled(queue.fail_head(error))
        self._active_queues.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(work, name).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails by a bug must not leave the application waiting."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.abandon(bug)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await wait_until_set(self._wake, self._dispatch())

    def _dispatch(self) -> float | None:
        """Send the batches that are ready; returns the seconds until the next one is."""
        now = self._cluster.clock.monotonic()
        settings = self._settings
        linger = 0.0 if self._no_linger else settings.linger_seconds
        next_at: float | None = None
        ready = []
        for queue in list(self._active_queues.values()):
            if queue.in_flight:
                continue
            self._expire_batches(queue, now)
            if not queue.batches:
                del self._active_queues[queue.target]
                continue
            at = queue.ready_at(linger, settings.batch_bytes_max)
            if at <= now + _TIMER_SLACK_SECONDS:
                queue.in_flight = True
                ready.append(queue)
            elif next_at is None or at < next_at:
                next_at = at
        for together in [[queue] for queue in ready] if settings.isolate_invalid_records else [ready] if ready else []:
            self._spawn(self._send_all(together), "producer round")
        return None if next_at is None else max(0.0, next_at - now)

    def _expire_batches(self, queue: PartitionBatchQueue, now: float) -> None:
        limit = self._settings.delivery_timeout_seconds
        while queue.batches and now - queue.batches[0].created_at >= limit:
            why = "" if queue.last_error is None else f": {queue.last_error.message.rstrip('.')}"
            error = DeliveryTimedOut(f"{queue.target} did not acknowledge a batch within {limit:g} s{why}")
            self._fail_batch(queue, error)

    async def _send_all(self, queues: list[PartitionBatchQueue]) -> None:
        by_leader: dict[int, list[PartitionBatchQueue]] = defaultdict(list)
        if self._transaction is not None:
            try:
                await self._transaction.enlist([queue.target for queue in queues])
            except HeadraceError as error:
                for queue in queues:
                    self._handle_batch_error(queue, error)
                return
        for queue in queues:
            try:
                if self._settings.idempotent and queue.identity is None:
                    queue.set_identity(await self._producer_identity())
                by_leader[(await self._cluster.partition(*queue.target)).leader].append(queue)
            except HeadraceError as error:
                self._handle_batch_error(queue, error)
        if len(by_leader) == 1:  # the usual case; a task group would cost as much as the request
            ((leader, theirs),) = by_leader.items()
            await self._send(leader, theirs)
            return
        async with asyncio.TaskGroup() as group:
            for leader, theirs in by_leader.items():
                group.create_task(self._send(leader, theirs))

    async def _send(self, leader: int, queues: list[PartitionBatchQueue]) -> None:
        attempts = [queue.batches[0].attempts for queue in queues]
        try:
            responses = await self._produce(leader, queues)
        except HeadraceError as error:
            for queue, before in zip(queues, attempts, strict=True):
                queue.batches[0].in_doubt |= queue.batches[0].attempts > before
                self._handle_batch_error(queue, error)
            return
        for queue in queues:
            response = responses.get(queue.target)
            if response is None:
                queue.batches[0].in_doubt = True
                self._handle_batch_error(queue, error_of_code(-1, f"the broker's response left out {queue.target}"))
            elif response.error_code in (0, DuplicateSequence.code):
                self._complete_batch(queue, response.base_offset)
            else:
                verdict = error_of_code(response.error_code, _error_message(response))
                # A leader that loses its leadership or followers, or fails, after the append reports such an error.
                queue.batches[0].in_doubt |= verdict.retriable or response.error_code == _UNKNOWN_SERVER_ERROR
                self._handle_batch_error(queue, verdict)

    async def _produce(
        self, leader: int, queues: list[PartitionBatchQueue]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        """One request. With acks=0 there is no response, and success is assumed when it has been sent."""
        cluster, settings = self._cluster, self._settings
        transport = await cluster.transport(leader)
        for queue in queues:
            if settings.idempotent and queue.batches[0].attempts == 0:
                queue.assign_sequence()
            queue.batches[0].attempts += 1
        request = self._request(queues)
        api = api_of_request(request)
        version = choose_version(transport, api, _NAMES_UNTIL if self._transaction is None else _ENLISTS_UNTIL)
        if settings.acks == 0:
            transport.post(api.key, version, request)
            return {o.target: PartitionProduceResponse(index=o.target.partition, base_offset=-1) for o in queues}
        timeout = cluster.settings.request_timeout_seconds
        response: ProduceResponse = await transport.call(api.key, version, request, timeout)
        return {
            TopicPartition(topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }

    def _request(self, queues: Iterable[PartitionBatchQueue]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for queue in queues:
            batch = queue.batches[0]
            encoded = memoryview(
                batch.encode(self._settings.compression, is_transactional=self._transaction is not None)
            )
            topics[queue.target.topic].append(PartitionProduceData(index=queue.target.partition, records=encoded))
        return ProduceRequest(
            transactional_id=None if self._transaction is None else self._transaction.transactional_id or None,
            acks=self._settings.acks,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _handle_batch_error(self, queue: PartitionBatchQueue, error: HeadraceError) -> None:
        """Retry the batch after a failed attempt, split it, restart it with a new identity, or fail it."""
        head = queue.batches[0]
        # A batch whose attempts were all rejected cannot be in the log, and may be sent in another form. After an
        # attempt without a final result it may have been written: its sequence numbers must not be used for another
        # batch, whose records the broker would drop as duplicates.
        certain = head.attempts > 0 and not head.in_doubt
        if len(head.records) > 1 and certain and self._may_split(error):
            queue.split_head()
        elif isinstance(error, _PRODUCER_STATE_LOST) and certain and self._transaction is None:
            self._identity = None
            queue.restart_with_new_identity()
        elif error.retriable and not self._topic_never_appeared(head, error):
            self._cluster.invalidate_metadata()
            queue.failures += 1
            queue.last_error = error
            pause = self._cluster.backoff().seconds_after(queue.failures)
            queue.not_before = self._cluster.clock.monotonic() + pause
        else:
            self._fail_batch(queue, error)
        queue.in_flight = False
        self._wake.set()

    def _may_split(self, error: HeadraceError) -> bool:
        """Whether a part of the batch may be accepted where the whole is not. A batch that reuses a dedup id fails as a
        whole: the caller did not mean to send it, so no part of it may be written."""
        if isinstance(error, InvalidRecords):
            return self._settings.isolate_invalid_records and DEDUP_ID_REUSED not in error.message
        return isinstance(error, MessageTooLarge)

    def _topic_never_appeared(self, batch: PendingBatch, error: HeadraceError) -> bool:
        """Whether the topic of a batch has been missing for so long that it is not expected to appear."""
        seconds = self._settings.topic_wait_seconds
        waited = self._cluster.clock.monotonic() - batch.created_at
        return isinstance(error, UnknownTopicOrPartition) and seconds is not None and waited >= seconds

    def _fail_batch(self, queue: PartitionBatchQueue, error: HeadraceError) -> None:
        if queue.batches[0].in_doubt:
            self._identity = None
        if self._transaction is not None:
            self._transaction.set_abortable_error(error)
        self._settled(queue.fail_head(error))

    def _complete_batch(self, queue: PartitionBatchQueue, base_offset: int) -> None:
        batch = queue.complete_head(base_offset)
        queue.in_flight = False
        queue.not_before = 0.0
        self._settled(batch)
        self._wake.set()

    async def _producer_identity(self) -> ProducerIdentity:
        """The producer's identity; requested if there is none, or the broker has lost it."""
        if self._transaction is not None:
            return self._transaction.identity
        async with self._identifying:
            if self._identity is None:
                self._identity = await new_producer_identity(self._cluster)
            return self._identity


async def new_producer_identity(cluster: Cluster) -> ProducerIdentity:
    """Request an identity without a transactional id; one attempt."""
    response: InitProducerIdResponse = await cluster.call(InitProducerIdRequest())
    raise_for_code(response.error_code)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def _error_message(response: PartitionProduceResponse) -> str | None:
    """The broker's message, with the first record that it rejects."""
    if response.record_errors:
        first = response.record_errors[0]
        why = first.batch_index_error_message or response.error_message
        return f"record {first.batch_index} of the batch: {why}"
    return response.error_message
