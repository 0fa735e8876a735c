"""TxnOffsetCommit: offset commits as part of a transaction.

The commits are appended to the group's partition of `__consumer_offsets` as batches of the producer's transaction, and
are pending until its marker: a commit applies them, an abort drops them. Meanwhile, clients that request stable offsets
get a retriable error. As for every other batch, the partition must be part of the transaction before the append.
"""

from __future__ import annotations

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.handlers import ReportErrors, RequestContext
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
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ADDS_OFFSETS_SINCE = 5  # KIP-890: producers no longer send AddOffsetsToTxn


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
        response = TxnOffsetCommitResponse()
        results: list[TxnOffsetCommitResponsePartition] = []
        for topic in request.topics:
            of_topic = [TxnOffsetCommitResponsePartition(one.partition_index) for one in topic.partitions]
            response.topics.append(TxnOffsetCommitResponseTopic(topic.name, of_topic))
            results += of_topic
        try:
            check_group_id(request.group_id)
            groups = await self._coordinator.ensure(request.group_id)
            events = self._events(request, groups, results)
            producer = request.transactional_id, request.producer_id, request.producer_epoch
            # Older clients have added the partition themselves, so it only has to be confirmed.
            adds = context.version >= _ADDS_OFFSETS_SINCE
            await self._transactions.add_to_transaction(*producer, [groups.partition], adds=adds)
            # Check, append and apply the commits in one step.
            groups = self._coordinator.of(request.group_id)
            self._check_member(request, groups, events)
            self._transactions.verify(*producer, groups.partition)
            await groups.commit_pending(events, request.producer_id, request.producer_epoch)
        except HeadraceError as error:
            for result in results:
                result.error_code = result.error_code or _as_client_error(error).code
        return response

    def _events(
        self, request: TxnOffsetCommitRequest, groups: GroupShard, results: list[TxnOffsetCommitResponsePartition]
    ) -> list[OffsetCommitted]:
        """Return the valid commits; the results of the others contain their errors."""
        events = []
        partitions = [(topic.name, requested) for topic in request.topics for requested in topic.partitions]
        for (topic, requested), result in zip(partitions, results, strict=True):
            with ReportErrors(result):
                self._catalogue.partition_record(topic, requested.partition_index)
                event = groups.offsets.commit(
                    request.group_id,
                    topic,
                    requested.partition_index,
                    requested.committed_offset,
                    now_ms=self._clock.now_ms(),
                    leader_epoch=requested.committed_leader_epoch,
                    metadata=requested.committed_metadata,
                    topic_id=self._catalogue.topic(topic).id,
                )
                events.append(event)
        return events

    def _check_member(self, request: TxnOffsetCommitRequest, groups: GroupShard, events: list[OffsetCommitted]) -> None:
        """Check the member and generation, unless the producer is too old to send them."""
        if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
            groups.check_commit(
                request.group_id,
                request.member_id,
                request.generation_id,
                request.group_instance_id,
                IllegalGeneration,
                [(event.committed.topic_id, event.partition) for event in events],
            )


def _as_client_error(error: HeadraceError) -> HeadraceError:
    """Translate the error: clients do not expect CONCURRENT_TRANSACTIONS from this request."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, ConcurrentTransactions):
        return CoordinatorLoading(error.message)
    return error
