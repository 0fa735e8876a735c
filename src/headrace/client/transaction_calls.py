"""What a transactional producer asks of the coordinator of its transactional id, wherever that is at present.

In the protocol in which the client says which partitions take part. It is spoken by every broker; the newer one
(KIP-890) only where the cluster has switched it on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import refusal
from headrace.client.metadata import TopicPartition
from headrace.client.outbox import ProducerIdentity
from headrace.client.transaction_admin import transaction_coordinator
from headrace.model.errors import (
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    OperationNotAttempted,
    ProducerFenced,
    TransactionCoordinatorFenced,
)
from headrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from headrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_ADD_PARTITIONS_MAX = 3
_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionCoordinatorFenced)


class TransactionCalls:
    """The calls of one transactional id, whose transactions may be open for so long."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_seconds = timeout_seconds
        self._coordinator: int | None = None

    async def ask(self, request: Any, version_max: int | None = None) -> Any:
        """One attempt; the answer, whatever code it holds: `check` that."""
        if self._coordinator is None:
            self._coordinator = await transaction_coordinator(self._cluster, self._transactional_id)
        try:
            return await self._cluster.call(request, node_id=self._coordinator, version_max=version_max)
        except HeadraceError as error:
            if error.retriable:
                self._coordinator = None
            raise

    def check(self, code: int, message: str | None = None) -> None:
        """Raise what the code stands for; 0 is success."""
        if code:
            error = refusal(code, message)
            if error.retriable:
                self._coordinator = None
            raise self.explained(error)

    def explained(self, error: HeadraceError) -> HeadraceError:
        """Being fenced has several numbers, and one meaning."""
        if not isinstance(error, _FENCED):
            return error
        return ProducerFenced(
            f"another producer with the transactional id {self._transactional_id!r} has taken over, or the transaction "
            f"was open for longer than {self._timeout_seconds:g} s; end this one, and give every worker an id "
            "of its own that it keeps over restarts"
        )

    async def init(self, claim: ProducerIdentity) -> ProducerIdentity:
        """An epoch of our own: a new one for whoever comes first, or the next for whoever still has the last."""
        request = InitProducerIdRequest(
            self._transactional_id, int(self._timeout_seconds * 1000), claim.producer_id, claim.epoch
        )

        async def attempt() -> ProducerIdentity:
            answer: InitProducerIdResponse = await self.ask(request)
            self.check(answer.error_code)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        return await self._cluster.persist(attempt)

    async def add_partitions(self, identity: ProducerIdentity, targets: Iterable[TopicPartition]) -> None:
        """One attempt to make the partitions part of the transaction: all of them, or none."""
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in targets:
            topics[topic].append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()],
        )
        answer: AddPartitionsToTxnResponse = await self.ask(request, _ADD_PARTITIONS_MAX)
        codes = {
            result.partition_error_code
            for added in answer.results_by_topic_v3_and_below
            for result in added.results_by_partition
        }
        # Where one is refused the others are not tried: what matters is why the one is.
        for code in sorted(codes, key=lambda code: code == OperationNotAttempted.code):
            self.check(code)
