"""Moves outboxes to their leaders: who is ready, one Produce request per leader, and what each answer means.

Per partition an answer is success, "again" (the batch stays at the head and is sent again after a pause),
or the end of that batch. The sender never reorders and never drops in silence: every batch ends written or
refused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.client.cluster import Cluster
from headrace.client.errors import DeliveryTimedOut, raise_for, refusal
from headrace.client.metadata import TopicPartition
from headrace.client.outbox import Outbox, PendingBatch, ProducerIdentity, Written
from headrace.client.transport import api_of, choose_version
from headrace.model.errors import (
    DuplicateSequence,
    HeadraceError,
    InvalidProducerEpoch,
    MessageTooLarge,
    OutOfOrderSequence,
    RecordRefused,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from headrace.model.message_headers import DEDUP_ID_REUSED
from headrace.runtime.supervise import Supervisor
from headrace.wire.batch import Record
from headrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_LOST_STATE = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)
_TIMER_SLACK_SECONDS = 0.001  # timers may fire a little early, and must not then be set again and again
_NAMES_UNTIL = 12  # Produce names topics by id from version 13 on
_UNKNOWN_SERVER_ERROR = -1
_ENLISTS_UNTIL = 11  # from version 12 on the broker would enlist the partition by itself


@dataclass(frozen=True, slots=True)
class SendingRules:
    """How the sender sends. `topic_wait_seconds`: a topic that is not there may appear for so long; for as long as a
    record may wait at all, if it is None. `isolates`: the records are those of strangers to each other; one that breaks
    a rule does not take its batch with it, and a partition that is slow does not hold up others."""

    acks: int
    idempotent: bool
    compression: int
    linger_seconds: float
    batch_bytes_max: int
    delivery_timeout_seconds: float
    topic_wait_seconds: float | None = None
    isolates: bool = False


class Enlistment(Protocol):
    """The transaction of which the batches are a part, if they are."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def identity(self) -> ProducerIdentity: ...

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Return when the partitions are part of it, durably: only then may its batches come there."""

    def doom(self, error: HeadraceError) -> None:
        """One of its batches was given up, so that it cannot be committed any more."""


class Sender:
    """Runs in the background of one producer.

    `settled` is called with every batch that has left its outbox. In a transaction the identity is the transaction's:
    there is no other to go on with when the broker does not know it any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        rules: SendingRules,
        settled: Callable[[PendingBatch], None],
        transaction: Enlistment | None = None,
    ) -> None:
        self._outboxes: dict[TopicPartition, Outbox] = {}
        self._active: dict[TopicPartition, Outbox] = {}  # those with something in them
        self._cluster = cluster
        self._rules = rules
        self._settled = settled
        self._transaction = transaction
        self._wake = asyncio.Event()
        self._hurry = False
        self._identity: ProducerIdentity | None = None
        self._identifying = asyncio.Lock()
        self._tasks = Supervisor()

    def start(self) -> None:
        self._spawn(self._run(), "producer sender")

    async def stop(self) -> None:
        await self._tasks.stop()

    def has_room(self, target: TopicPartition, size_bytes: int) -> bool:
        """Whether a record of this size would join a batch that is being filled."""
        outbox = self._active.get(target)
        return outbox is not None and outbox.has_room(size_bytes, self._rules.batch_bytes_max)

    def submit(self, target: TopicPartition, record: Record, size_bytes: int) -> PendingBatch:
        """Put a record into its outbox; returns its batch."""
        outbox = self._outboxes.get(target)
        if outbox is None:
            outbox = self._outboxes[target] = Outbox(target)
        now = self._cluster.clock.monotonic()
        batch = outbox.append(record, size_bytes, now, self._rules.batch_bytes_max)
        self._active[target] = outbox
        self._wake.set()
        return batch

    def submit_all(
        self, target: TopicPartition, records: Sequence[Record], size_bytes: int, *, alone: bool
    ) -> PendingBatch:
        """Put records into their outbox, side by side at the end of one batch, which is returned."""
        outbox = self._outboxes.get(target)
        if outbox is None:
            outbox = self._outboxes[target] = Outbox(target)
        now = self._cluster.clock.monotonic()
        batch = outbox.append_all(records, size_bytes, now, self._rules.batch_bytes_max, alone=alone)
        self._active[target] = outbox
        self._wake.set()
        return batch

    @property
    def pending(self) -> list[PendingBatch]:
        """Every batch that is neither written nor refused yet."""
        return [batch for outbox in self._active.values() for batch in outbox.batches]

    def hurry(self, on: bool) -> None:
        """While on, nothing lingers."""
        self._hurry = on
        self._wake.set()

    def abandon(self, error: BaseException) -> None:
        """Refuse all that waits; for when the sender has stopped."""
        for outbox in self._active.values():
            while outbox.batches:
                self._settled(outbox.refuse(error, in_doubt=True))
        self._active.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(work, name).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that dies of a bug must not leave the application waiting."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.abandon(bug)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = self._dispatch()
            if pause is None:
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _dispatch(self) -> float | None:
        """Send what is ready; returns the seconds until something else will be."""
        now = self._cluster.clock.monotonic()
        rules = self._rules
        linger = 0.0 if self._hurry else rules.linger_seconds
        next_at: float | None = None
        ready = []
        for outbox in list(self._active.values()):
            if outbox.in_flight:
                continue
            self._give_up_old(outbox, now)
            if not outbox.batches:
                del self._active[outbox.target]
                continue
            at = outbox.ready_at(linger, rules.batch_bytes_max)
            if at <= now + _TIMER_SLACK_SECONDS:
                outbox.in_flight = True
                ready.append(outbox)
            elif next_at is None or at < next_at:
                next_at = at
        for together in [[outbox] for outbox in ready] if rules.isolates else [ready] if ready else []:
            self._spawn(self._send_all(together), "producer round")
        return None if next_at is None else max(0.0, next_at - now)

    def _give_up_old(self, outbox: Outbox, now: float) -> None:
        limit = self._rules.delivery_timeout_seconds
        while outbox.batches and now - outbox.batches[0].created_at >= limit:
            why = "" if outbox.why is None else f": {outbox.why.message.rstrip('.')}"
            error = DeliveryTimedOut(f"{outbox.target} did not acknowledge a batch within {limit:g} s{why}")
            self._refuse(outbox, error, in_doubt=outbox.batches[0].in_doubt)

    async def _send_all(self, outboxes: list[Outbox]) -> None:
        by_leader: dict[int, list[Outbox]] = defaultdict(list)
        if self._transaction is not None:
            try:
                await self._transaction.enlist([outbox.target for outbox in outboxes])
            except HeadraceError as error:
                for outbox in outboxes:
                    self._judge(outbox, error)
                return
        for outbox in outboxes:
            try:
                if self._rules.idempotent and outbox.identity is None:
                    outbox.adopt(await self._identify())
                by_leader[(await self._cluster.partition(*outbox.target)).leader].append(outbox)
            except HeadraceError as error:
                self._judge(outbox, error)
        if len(by_leader) == 1:  # mostly; a group of tasks would cost as much as the request
            ((leader, theirs),) = by_leader.items()
            await self._send(leader, theirs)
            return
        async with asyncio.TaskGroup() as group:
            for leader, theirs in by_leader.items():
                group.create_task(self._send(leader, theirs))

    async def _send(self, leader: int, outboxes: list[Outbox]) -> None:
        attempts = [outbox.batches[0].attempts for outbox in outboxes]
        try:
            answers = await self._produce(leader, outboxes)
        except HeadraceError as error:
            for outbox, before in zip(outboxes, attempts, strict=True):
                outbox.batches[0].in_doubt |= outbox.batches[0].attempts > before
                self._judge(outbox, error)
            return
        for outbox in outboxes:
            answer = answers.get(outbox.target)
            if answer is None:
                outbox.batches[0].in_doubt = True
                self._judge(outbox, refusal(-1, f"the broker's answer left out {outbox.target}"))
            elif answer.error_code in (0, DuplicateSequence.code):
                self._finish(outbox, Written(answer.base_offset, answer.log_append_time_ms))
            else:
                verdict = refusal(answer.error_code, _reason(answer))
                # A leader that loses its leadership or followers, or fails, after the append reports such an error.
                outbox.batches[0].in_doubt |= verdict.retriable or answer.error_code == _UNKNOWN_SERVER_ERROR
                self._judge(outbox, verdict)

    async def _produce(self, leader: int, outboxes: list[Outbox]) -> dict[TopicPartition, PartitionProduceResponse]:
        """One request. With acks=0 there is no answer, and success is assumed when it has been sent."""
        cluster, rules = self._cluster, self._rules
        transport = await cluster.transport(leader)
        for outbox in outboxes:
            if rules.idempotent and outbox.batches[0].attempts == 0:
                outbox.claim_sequence()
            outbox.batches[0].attempts += 1
        request = self._request(outboxes)
        api = api_of(request)
        version = choose_version(transport, api, _NAMES_UNTIL if self._transaction is None else _ENLISTS_UNTIL)
        if rules.acks == 0:
            transport.post(api.key, version, request)
            return {o.target: PartitionProduceResponse(index=o.target.partition, base_offset=-1) for o in outboxes}
        timeout = cluster.settings.request_timeout_seconds
        answer: ProduceResponse = await transport.call(api.key, version, request, timeout)
        return {
            TopicPartition(topic.name, partition.index): partition
            for topic in answer.responses
            for partition in topic.partition_responses
        }

    def _request(self, outboxes: Iterable[Outbox]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for outbox in outboxes:
            batch = outbox.batches[0]
            encoded = memoryview(batch.encode(self._rules.compression, is_transactional=self._transaction is not None))
            topics[outbox.target.topic].append(PartitionProduceData(index=outbox.target.partition, records=encoded))
        return ProduceRequest(
            transactional_id=None if self._transaction is None else self._transaction.transactional_id,
            acks=self._rules.acks,
            timeout_ms=int(self._cluster.settings.request_timeout_seconds * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _judge(self, outbox: Outbox, error: HeadraceError) -> None:
        """An attempt failed: again, in halves, under a new identity, or not at all."""
        head = outbox.batches[0]
        # Rejected at its first attempt, a batch cannot be in the log: it may go out again in another form. After an
        # attempt without a final verdict, it may have been written: its sequence must not be used for another batch,
        # whose records the broker would take for duplicates.
        certain = head.attempts > 0 and not head.in_doubt
        if head.record_count > 1 and certain and self._is_of_some(error):
            outbox.split()
        elif isinstance(error, _LOST_STATE) and certain and self._transaction is None:
            self._identity = None
            outbox.renew()
        elif error.retriable and not self._is_gone(head, error):
            self._cluster.distrust()
            outbox.failures += 1
            outbox.why = error
            pause = self._cluster.backoff().seconds_after(outbox.failures)
            outbox.not_before = self._cluster.clock.monotonic() + pause
        else:
            self._refuse(outbox, error, in_doubt=head.in_doubt)
        outbox.in_flight = False
        self._wake.set()

    def _is_of_some(self, error: HeadraceError) -> bool:
        """Whether a part of the batch may be welcome where the whole is not. A request that reuses a dedup id is one
        that the caller did not mean to send: no part of it may be written."""
        if isinstance(error, RecordRefused):
            return self._rules.isolates and DEDUP_ID_REUSED not in error.message
        return isinstance(error, MessageTooLarge)

    def _is_gone(self, batch: PendingBatch, error: HeadraceError) -> bool:
        """Whether a batch is for a topic that was not there for so long that it will not come."""
        seconds = self._rules.topic_wait_seconds
        waited = self._cluster.clock.monotonic() - batch.created_at
        return isinstance(error, UnknownTopicOrPartition) and seconds is not None and waited >= seconds

    def _refuse(self, outbox: Outbox, error: HeadraceError, *, in_doubt: bool) -> None:
        if in_doubt:
            self._identity = None
        if self._transaction is not None:
            self._transaction.doom(error)
        self._settled(outbox.refuse(error, in_doubt=in_doubt))

    def _finish(self, outbox: Outbox, written: Written) -> None:
        batch = outbox.settle(written)
        outbox.in_flight = False
        outbox.not_before = 0.0
        self._settled(batch)
        self._wake.set()

    async def _identify(self) -> ProducerIdentity:
        """The producer's identity; asked for when there is none, or the last one was lost."""
        if self._transaction is not None:
            return self._transaction.identity
        async with self._identifying:
            if self._identity is None:
                answer: InitProducerIdResponse = await self._cluster.call(InitProducerIdRequest())
                raise_for(answer.error_code)
                self._identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            return self._identity


def _reason(answer: PartitionProduceResponse) -> str | None:
    """The broker's sentence, with the first record that it objects to."""
    if answer.record_errors:
        first = answer.record_errors[0]
        why = first.batch_index_error_message or answer.error_message
        return f"record {first.batch_index} of the batch: {why}"
    return answer.error_message
