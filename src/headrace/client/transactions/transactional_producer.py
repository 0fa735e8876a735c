"""Write in transactions: all records between `begin` and `commit` become visible together or not at all.

    async with TransactionalProducer(cluster, "payments-1") as producer:
        async with producer.transaction():
            await producer.submit("ledger", b"...")
            await producer.send_offsets("billing", {TopicPartition("payments", 0): 18}, consumer.membership)

    NEW --start--> IDLE --begin--> OPEN --commit--> IDLE
                    ^                |--abort, or a commit that failed--> SPENT --begin (a new epoch)--> OPEN

- Starting fences the previous producer with this transactional id and aborts its open transaction.
- After a failed batch the transaction can only be aborted.
- After an abort the producer epoch is raised before anything else is written, so that a delayed batch of the aborted
  transaction cannot become part of the next one.
- `TransactionCoordinatorClient` uses the protocol in which the client adds partitions to the transaction. All brokers
  support it; the newer one (KIP-890) must be enabled for the whole cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import CommitInDoubt, error_of_code
from headrace.client.groups.offsets import ConsumerGroupMetadata
from headrace.client.metadata import TopicPartition, partitions_by_topic
from headrace.client.produce.pending_batches import ProducerIdentity
from headrace.client.produce.producer import Delivery, Header, Producer, ProducerSettings
from headrace.model.errors import (
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    OperationNotAttempted,
    ProducerFenced,
    TransactionCoordinatorFenced,
)
from headrace.wire.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_ADD_PARTITIONS_MAX = 3
_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionCoordinatorFenced)


class TransactionCoordinatorClient:
    """Calls the coordinator of one transactional id, wherever it is at present."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_seconds = timeout_seconds
        self._coordinator: int | None = None

    async def call(self, request: Any, version_max: int | None = None) -> Any:
        """One attempt; check the error code of the response with `raise_for_code`."""
        if self._coordinator is None:
            self._coordinator = await self._cluster.transaction_coordinator(self._transactional_id)
        try:
            return await self._cluster.call(request, node_id=self._coordinator, version_max=version_max)
        except HeadraceError as error:
            if error.retriable:
                self._coordinator = None
            raise

    def raise_for_code(self, code: int) -> None:
        """Raise the error of a code; 0 is success."""
        if code:
            error = error_of_code(code)
            if error.retriable:
                self._coordinator = None
            raise self.fencing_explained(error)

    def fencing_explained(self, error: HeadraceError) -> HeadraceError:
        """Replace the several errors of a fenced producer by one."""
        if not isinstance(error, _FENCED):
            return error
        return ProducerFenced(
            f"another producer with the transactional id {self._transactional_id!r} has taken over, or the transaction "
            f"was open for longer than {self._timeout_seconds:g} s; end this one, and give every worker an id "
            "of its own that it keeps over restarts"
        )

    async def init(self, claim: ProducerIdentity) -> ProducerIdentity:
        """Get a new producer epoch. `claim` is the current identity, or empty for the first call."""
        request = InitProducerIdRequest(
            self._transactional_id, int(self._timeout_seconds * 1000), claim.producer_id, claim.epoch
        )

        async def attempt() -> ProducerIdentity:
            response: InitProducerIdResponse = await self.call(request)
            self.raise_for_code(response.error_code)
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        return await self._cluster.call_with_retries(attempt)

    async def add_partitions(self, identity: ProducerIdentity, targets: Iterable[TopicPartition]) -> None:
        """One attempt to make the partitions part of the transaction: all of them, or none."""
        topics = partitions_by_topic(targets)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()],
        )
        response: AddPartitionsToTxnResponse = await self.call(request, _ADD_PARTITIONS_MAX)
        codes = {
            result.partition_error_code
            for added in response.results_by_topic_v3_and_below
            for result in added.results_by_partition
        }
        # If one partition is rejected the others are not attempted: report the error of that one.
        for code in sorted(codes, key=lambda code: code == OperationNotAttempted.code):
            self.raise_for_code(code)


_ABORT_SECONDS = 5.0  # after that, the next `begin` or the transaction timeout aborts it
_TXN_OFFSET_COMMIT_MAX, _END_TXN_MAX = 4, 4


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """`timeout_seconds`: how long a transaction may be open before the broker aborts it and fences its producer."""

    timeout_seconds: float = 60.0
    producing: ProducerSettings = field(default_factory=ProducerSettings)


class _TransactionState(Enum):
    NEW = auto()
    IDLE = auto()
    OPEN = auto()
    SPENT = auto()  # aborted, or of unknown outcome: the epoch must be raised


class TransactionalProducer:
    """The only live producer with its transactional id; it has one transaction at a time."""

    def __init__(self, cluster: Cluster, transactional_id: str, settings: TransactionSettings | None = None) -> None:
        self.transactional_id = transactional_id
        self.settings = settings or TransactionSettings()
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._coordinator_client = TransactionCoordinatorClient(
            cluster, transactional_id, self.settings.timeout_seconds
        )
        self._state = _TransactionState.NEW
        self._producer: Producer | None = None
        self._enlisted: set[TopicPartition] = set()
        self._has_asked = False  # the coordinator may know of an open transaction
        self._abortable_error: HeadraceError | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Take over the transactional id: fences the previous producer and aborts its open transaction."""
        assert self._state is _TransactionState.NEW
        await self._take_over(ProducerIdentity())

    async def close(self) -> None:
        """Abort the open transaction, and stop."""
        await self.abort_quietly()
        await self._drop_producer()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Commit at the end of the block; abort if it raises, or if the commit fails."""
        await self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            await self.abort_quietly()
            raise

    # --- one transaction ---

    async def begin(self) -> None:
        if self._state is _TransactionState.OPEN:
            raise InvalidTransactionState(f"a transaction of {self.transactional_id!r} is open; commit or abort it")
        if self._state is _TransactionState.NEW:
            await self.start()
        elif self._state is _TransactionState.SPENT:
            await self._take_over(self.identity)
        if self._producer is None:
            self._producer = Producer(self._cluster, self.settings.producing, self)
            await self._producer.__aenter__()
        self._state = _TransactionState.OPEN
        self._enlisted.clear()
        self._has_asked = False
        self._abortable_error = None

    async def submit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
    ) -> Delivery:
        """Submit one record; `commit` waits until it is written, whether its delivery is awaited or not."""
        return await self._open_producer().submit(topic, value, key=key, headers=headers, partition=partition)

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], membership: ConsumerGroupMetadata | None = None
    ) -> None:
        """Commit these offsets for the group together with the transaction. With the consumer's `membership` this fails
        if the partitions were assigned to another member."""
        self._open_producer()
        if not offsets:
            return
        self._has_asked = True
        request = AddOffsetsToTxnRequest(self.transactional_id, *self.identity, group)

        async def add() -> None:
            response: AddOffsetsToTxnResponse = await self._coordinator_client.call(request)
            self._coordinator_client.raise_for_code(response.error_code)

        await self._cluster.call_with_retries(add)
        await self._cluster.call_with_retries(
            lambda: self._commit_offsets(group, offsets, membership or ConsumerGroupMetadata())
        )

    async def commit(self) -> None:
        """Return when the transaction is committed. After an error it can only be aborted; after `CommitInDoubt` it may
        be committed."""
        try:
            await self._open_producer().flush()
        except HeadraceError as error:
            raise self._coordinator_client.fencing_explained(error) from error
        if self._abortable_error is not None:
            raise self._abortable_error
        try:
            await self._end(is_commit=True)
        except HeadraceError as error:
            if not error.retriable:
                raise
            self._state = _TransactionState.SPENT
            raise CommitInDoubt(
                f"the commit of a transaction of {self.transactional_id!r} was not answered ({error.message}); it may "
                "have been committed: look at the offsets that the group has committed before you do the work again"
            ) from error
        self._state = _TransactionState.IDLE

    async def abort(self) -> None:
        """Abort the transaction. If the coordinator cannot be reached, the next `begin` aborts it."""
        if self._state is not _TransactionState.OPEN:
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open")
        self._state = _TransactionState.SPENT
        await self._drop_producer()
        with suppress(InvalidTransactionState):  # the coordinator does not know the transaction yet
            await self._end(is_commit=False)

    async def abort_quietly(self) -> bool:
        """Abort after another error. Returns False if no transaction is open, because its outcome is not known."""
        if self._state is not _TransactionState.OPEN:
            return False
        with suppress(HeadraceError):  # the earlier error matters more, and the next `begin` aborts it
            await self.abort()
        return True

    # --- for the sender ---

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        fresh = sorted(set(targets) - self._enlisted)
        if not fresh:
            return
        self._has_asked = True
        await self._coordinator_client.add_partitions(self.identity, fresh)
        self._enlisted.update(fresh)

    def set_abortable_error(self, error: HeadraceError) -> None:
        if self._abortable_error is None:
            self._abortable_error = self._coordinator_client.fencing_explained(error)

    # --- inside ---

    def _open_producer(self) -> Producer:
        if self._state is not _TransactionState.OPEN or self._producer is None:
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open; begin one")
        if self._abortable_error is not None and isinstance(self._abortable_error, ProducerFenced):
            raise self._abortable_error
        return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    async def _take_over(self, claim: ProducerIdentity) -> None:
        await self._drop_producer()
        self.identity = await self._coordinator_client.init(claim)
        self._state = _TransactionState.IDLE

    async def _end(self, *, is_commit: bool) -> None:
        if not self._has_asked:
            return
        request = EndTxnRequest(self.transactional_id, *self.identity, is_commit)

        async def call() -> None:
            response: EndTxnResponse = await self._coordinator_client.call(request, _END_TXN_MAX)
            self._coordinator_client.raise_for_code(response.error_code)

        await self._cluster.call_with_retries(call, deadline_seconds=None if is_commit else _ABORT_SECONDS)

    async def _commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], membership: ConsumerGroupMetadata
    ) -> None:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), offset in offsets.items():
            topics[topic].append(TxnOffsetCommitRequestPartition(partition, offset, committed_metadata=""))
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            *self.identity,
            membership.generation,
            membership.member_id,
            membership.instance_id,
            [TxnOffsetCommitRequestTopic(name, partitions) for name, partitions in topics.items()],
        )
        response: TxnOffsetCommitResponse = await self._cluster.call_coordinator(
            group, request, version_max=_TXN_OFFSET_COMMIT_MAX
        )
        for result in response.topics:
            for partition_ in result.partitions:
                try:
                    self._cluster.raise_for_coordinator(group, partition_.error_code)
                except HeadraceError as error:
                    raise self._coordinator_client.fencing_explained(error) from None
