"""TxnOffsetCommit: how far a group has read, as part of a transaction.

The commits are appended to the group's partition of `__consumer_offsets` as batches of the producer's transaction, and
wait there for its marker: with a commit they come to count, with an abort they never were. Until then readers that ask
for stable offsets are told to come again. The partition must be part of the transaction before anything of it is
appended, like every other.
"""

from __future__ import annotations

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_verification import TransactionVerification
from headrace.machines.groups.group_offsets import OffsetCommitted
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
from headrace.wire.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ADDS_OFFSETS_SINCE = 5  # of KIP-890: producers no longer say AddOffsetsToTxn


class TransactionalOffsets:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        transactions: TransactionVerification,
        catalogue: Catalogue,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._transactions = transactions
        self._catalogue = catalogue
        self._clock = clock

    async def commit(self, request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=requested.partition_index)
                        for requested in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
        answers = [answer for topic in response.topics for answer in topic.partitions]
        try:
            check_group_id(request.group_id)
            groups = await self._coordinator.ensure(request.group_id)
            events = self._events(request, groups, answers)
            await self._add_offsets_partition(request, groups, context.version)
            await self._append_commits(request, events)
        except HeadraceError as error:
            for answer in answers:
                answer.error_code = answer.error_code or _as_client_error(error).code
        return response

    def _events(
        self, request: TxnOffsetCommitRequest, groups: GroupShard, answers: list[TxnOffsetCommitResponsePartition]
    ) -> list[OffsetCommitted]:
        """What can be committed; the answers to the rest say why it cannot."""
        events = []
        requested = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        for (topic, partition), answer in zip(requested, answers, strict=True):
            try:
                events.append(self._event(groups, request.group_id, topic, partition))
            except HeadraceError as error:
                answer.error_code = error.code
        return events

    async def _add_offsets_partition(self, request: TxnOffsetCommitRequest, groups: GroupShard, version: int) -> None:
        """Let the group's partition be part of the transaction, if the client leaves that to us; else have it
        confirmed that it is."""
        await self._transactions.add_to_transaction(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [groups.partition],
            adds=version >= _ADDS_OFFSETS_SINCE,
        )

    async def _append_commits(self, request: TxnOffsetCommitRequest, events: list[OffsetCommitted]) -> None:
        """Check, append and note the commits in one step; return when they are durable."""
        groups = self._coordinator.of(request.group_id)
        self._check_member(request, groups, events)
        self._transactions.verify(
            request.transactional_id, request.producer_id, request.producer_epoch, groups.partition
        )
        await groups.commit_pending(events, request.producer_id, request.producer_epoch)

    def _check_member(self, request: TxnOffsetCommitRequest, groups: GroupShard, events: list[OffsetCommitted]) -> None:
        """A producer that does not say for which member it commits is not asked: older ones cannot."""
        if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
            groups.check_commit(
                request.group_id,
                request.member_id,
                request.generation_id,
                request.group_instance_id,
                IllegalGeneration,
                [(event.committed.topic_id, event.partition) for event in events],
            )

    def _event(
        self, groups: GroupShard, group_id: str, topic: str, requested: TxnOffsetCommitRequestPartition
    ) -> OffsetCommitted:
        self._catalogue.partition_record(topic, requested.partition_index)
        return groups.offsets.commit(
            group_id,
            topic,
            requested.partition_index,
            requested.committed_offset,
            now_ms=self._clock.now_ms(),
            leader_epoch=requested.committed_leader_epoch,
            metadata=requested.committed_metadata,
            topic_id=self._catalogue.topic(topic).id,
        )


def _as_client_error(error: HeadraceError) -> HeadraceError:
    """In the words of this request: its clients know nothing of concurrent transactions."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, ConcurrentTransactions):
        return CoordinatorLoading(error.message)
    return error
