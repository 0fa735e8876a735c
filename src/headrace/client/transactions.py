"""Writing in transactions: what is written between `begin` and `commit` is read as a whole or not at all.

    async with TransactionalProducer(cluster, "payments-1") as producer:
        async with producer.transaction():
            await producer.submit("ledger", b"...")
            await producer.send_offsets("billing", {TopicPartition("payments", 0): 18}, consumer.membership)

    NEW --start--> IDLE --begin--> OPEN --commit--> IDLE
                    ^                |--abort, or a commit that failed--> SPENT --begin (a new epoch)--> OPEN

Starting fences whoever had the id before, and ends what that one left open. A batch that is given up dooms its
transaction: then it can only be aborted. After an abort the epoch is raised before anything else is written, so that a
batch of the aborted transaction that is still on its way cannot become part of the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self

from headrace.client.cluster import Cluster
from headrace.client.errors import CommitInDoubt, refusal
from headrace.client.metadata import TopicPartition
from headrace.client.offsets import Membership
from headrace.client.outbox import ProducerIdentity
from headrace.client.producer import Delivery, Header, Producer, ProducerSettings
from headrace.client.transaction_calls import TransactionCalls
from headrace.model.errors import HeadraceError, InvalidTransactionState, ProducerFenced
from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

_ABORT_SECONDS = 5.0  # what is not aborted by then is with the next `begin`, or when its time is over
# The older protocol, as in `TransactionCalls`.
_TXN_OFFSET_COMMIT_MAX, _END_TXN_MAX = 4, 4


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """`timeout_seconds`: how long a transaction may be open before the broker aborts it and fences its producer."""

    timeout_seconds: float = 60.0
    producing: ProducerSettings = field(default_factory=ProducerSettings)


class _State(Enum):
    NEW = auto()
    IDLE = auto()
    OPEN = auto()
    SPENT = auto()  # aborted, or of unknown outcome: the epoch must be raised


class TransactionalProducer:
    """The writer that has a transactional id: one at a time, everywhere. One transaction at a time, too."""

    def __init__(self, cluster: Cluster, transactional_id: str, settings: TransactionSettings | None = None) -> None:
        self.transactional_id = transactional_id
        self.settings = settings or TransactionSettings()
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._calls = TransactionCalls(cluster, transactional_id, self.settings.timeout_seconds)
        self._state = _State.NEW
        self._producer: Producer | None = None
        self._enlisted: set[TopicPartition] = set()
        self._has_asked = False  # the coordinator may know of an open transaction
        self._doom: HeadraceError | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Take the id over: what another with this id has open is aborted, and all that it still does is refused."""
        assert self._state is _State.NEW
        await self._take(ProducerIdentity())

    async def close(self) -> None:
        """Abort what is open, and stop."""
        await self.abort_quietly()
        await self._drop_producer()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Commits in the end; aborts when something is raised, and if the commit is refused."""
        await self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            await self.abort_quietly()
            raise

    # --- one transaction ---

    async def begin(self) -> None:
        if self._state is _State.OPEN:
            raise InvalidTransactionState(f"a transaction of {self.transactional_id!r} is open; commit or abort it")
        if self._state is _State.NEW:
            await self.start()
        elif self._state is _State.SPENT:
            await self._take(self.identity)
        if self._producer is None:
            self._producer = Producer(self._cluster, self.settings.producing, self)
            await self._producer.__aenter__()
        self._state = _State.OPEN
        self._enlisted.clear()
        self._has_asked = False
        self._doom = None

    async def submit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
    ) -> Delivery:
        """Hand over one record; `commit` waits until it is written, whether its delivery is awaited or not."""
        return await self._open_producer().submit(topic, value, key=key, headers=headers, partition=partition)

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], membership: Membership | None = None
    ) -> None:
        """Let the group have read up to these offsets if the transaction commits.

        With the consumer's `membership` it is refused when the group has given the partitions to another member.
        """
        self._open_producer()
        if not offsets:
            return
        self._has_asked = True
        request = AddOffsetsToTxnRequest(self.transactional_id, *self.identity, group)

        async def add() -> None:
            answer: AddOffsetsToTxnResponse = await self._calls.ask(request)
            self._calls.check(answer.error_code)

        await self._cluster.persist(add)
        await self._cluster.persist(lambda: self._commit_offsets(group, offsets, membership or Membership()))

    async def commit(self) -> None:
        """Return when all of it can be read. Raises what refused it, after which it can only be aborted, or
        `CommitInDoubt`."""
        try:
            await self._open_producer().flush()
        except HeadraceError as error:
            raise self._calls.explained(error) from error
        if self._doom is not None:
            raise self._doom
        try:
            await self._end(is_commit=True)
        except HeadraceError as error:
            if not error.retriable:
                raise
            self._state = _State.SPENT
            raise CommitInDoubt(
                f"the commit of a transaction of {self.transactional_id!r} was not answered ({error.message}); it may "
                "have been committed: look at the offsets that the group has committed before you do the work again"
            ) from error
        self._state = _State.IDLE

    async def abort(self) -> None:
        """As if nothing had been written. If it cannot be said now, the next `begin` says it."""
        if self._state is not _State.OPEN:
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open")
        self._state = _State.SPENT
        await self._drop_producer()
        with suppress(InvalidTransactionState):  # nothing of it has come as far as the coordinator
            await self._end(is_commit=False)

    async def abort_quietly(self) -> bool:
        """Abort what is open, for when something else has gone wrong; False if nothing is open any more, since its
        outcome is not known."""
        if self._state is not _State.OPEN:
            return False
        with suppress(HeadraceError):  # what went wrong before is what matters; the next `begin` ends it for sure
            await self.abort()
        return True

    # --- for the sender ---

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        fresh = sorted(set(targets) - self._enlisted)
        if not fresh:
            return
        self._has_asked = True
        await self._calls.add_partitions(self.identity, fresh)
        self._enlisted.update(fresh)

    def doom(self, error: HeadraceError) -> None:
        if self._doom is None:
            self._doom = self._calls.explained(error)

    # --- inside ---

    def _open_producer(self) -> Producer:
        if self._state is not _State.OPEN or self._producer is None:
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open; begin one")
        if self._doom is not None and isinstance(self._doom, ProducerFenced):
            raise self._doom
        return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    async def _take(self, claim: ProducerIdentity) -> None:
        await self._drop_producer()
        self.identity = await self._calls.init(claim)
        self._state = _State.IDLE

    async def _end(self, *, is_commit: bool) -> None:
        if not self._has_asked:
            return
        request = EndTxnRequest(self.transactional_id, *self.identity, is_commit)

        async def ask() -> None:
            answer: EndTxnResponse = await self._calls.ask(request, _END_TXN_MAX)
            self._calls.check(answer.error_code)

        await self._cluster.persist(ask, deadline_seconds=None if is_commit else _ABORT_SECONDS)

    async def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], membership: Membership) -> None:
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
        answer: TxnOffsetCommitResponse = await self._cluster.call_coordinator(
            group, request, version_max=_TXN_OFFSET_COMMIT_MAX
        )
        for told in answer.topics:
            for partition_ in told.partitions:
                if partition_.error_code:
                    error = refusal(partition_.error_code)
                    self._cluster.doubt_coordinator(group, error)
                    raise self._calls.explained(error)
