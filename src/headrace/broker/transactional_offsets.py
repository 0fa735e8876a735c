"""TxnOffsetCommit: how far a group has read, as part of a transaction.

The commits are appended to the group's partition of `__consumer_offsets` as batches of the producer's transaction, and
wait there for its marker: with a commit they come to count, with an abort they never were. Until then readers that ask
for stable offsets are told to come again. The partition must be part of the transaction before anything of it is
appended, like every other.
"""

from __future__ import annotations

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.coordinator import Coordinator
from headrace.broker.group_records import offset_record
from headrace.broker.offsets_log import OffsetsLog, durable
from headrace.broker.transaction_coordinator import TransactionCoordinator
from headrace.machines.offsets import OffsetCommitted, Transaction
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    HeadraceError,
    IllegalGeneration,
    InvalidProducerEpoch,
    ProducerFenced,
)
from headrace.model.names import check_group_id
from headrace.runtime.clock import Clock
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ENLISTS_SINCE = 5  # of KIP-890: producers no longer say AddOffsetsToTxn


class TransactionalOffsets:
    def __init__(
        self,
        coordinator: Coordinator,
        transactions: TransactionCoordinator,
        offsets_log: OffsetsLog,
        catalogue: Catalogue,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._transactions = transactions
        self._log = offsets_log
        self._catalogue = catalogue
        self._clock = clock
        offsets_log.on_marker = self._on_marker

    async def commit(self, request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
        response = TxnOffsetCommitResponse()
        events: list[OffsetCommitted] = []
        pending: list[TxnOffsetCommitResponsePartition] = []
        for topic in request.topics:
            answers = TxnOffsetCommitResponseTopic(name=topic.name)
            for asked in topic.partitions:
                answer = TxnOffsetCommitResponsePartition(partition_index=asked.partition_index)
                answers.partitions.append(answer)
                try:
                    events.append(self._event(request.group_id, topic.name, asked))
                    pending.append(answer)
                except HeadraceError as error:
                    answer.error_code = error.code
            response.topics.append(answers)
        try:
            await self._join(request, context.version)
            await self._append(request, events)
        except HeadraceError as error:
            for answer in pending:
                answer.error_code = _told(error).code
        return response

    async def _join(self, request: TxnOffsetCommitRequest, version: int) -> None:
        """Let the group's partition be part of the transaction, if the client leaves that to us."""
        check_group_id(request.group_id)
        self._coordinator.ensure_loaded(request.group_id)
        await self._log.ensure()
        if version >= _ENLISTS_SINCE:
            await self._transactions.enlist(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                [self._log.partition_of(request.group_id)],
            )

    async def _append(self, request: TxnOffsetCommitRequest, events: list[OffsetCommitted]) -> None:
        """Check, append and note the commits in one step; return when they are durable."""
        self._check_member(request, events)
        partition = self._log.partition_of(request.group_id)
        self._transactions.verify(request.transactional_id, request.producer_id, request.producer_epoch, partition)
        if not events:
            return
        wait = self._log.append_transactional(
            request.group_id,
            [offset_record(event) for event in events],
            request.producer_id,
            request.producer_epoch,
        )
        for event in events:
            self._coordinator.offsets.add_pending((partition.index, request.producer_id), event)
        await durable(wait)

    def _check_member(self, request: TxnOffsetCommitRequest, events: list[OffsetCommitted]) -> None:
        """A producer that does not say for which member it commits is not asked: older ones cannot."""
        self._coordinator.ensure_loaded(request.group_id)
        if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
            self._coordinator.committing_group(
                request.group_id,
                request.member_id,
                request.generation_id,
                request.group_instance_id,
                IllegalGeneration,
                [(event.committed.topic_id, event.partition) for event in events],
            )

    def _event(self, group_id: str, topic: str, asked: TxnOffsetCommitRequestPartition) -> OffsetCommitted:
        partition = self._catalogue.partition(topic, asked.partition_index)
        return self._coordinator.offsets.commit(
            group_id,
            topic,
            asked.partition_index,
            asked.committed_offset,
            now_ms=self._clock.now_ms(),
            leader_epoch=asked.committed_leader_epoch,
            metadata=asked.committed_metadata,
            topic_id=partition.topic_id,
        )

    def _on_marker(self, transaction: Transaction, is_commit: bool) -> None:
        for event in self._coordinator.offsets.end_transaction(transaction, is_commit=is_commit):
            self._coordinator.note_offsets(event.group_id)


def _told(error: HeadraceError) -> HeadraceError:
    """In the words of this request: its clients know nothing of concurrent transactions."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, ConcurrentTransactions):
        return CoordinatorLoading(error.message)
    return error
