"""Transactions, as an administrator handles them: which there are, what they touch, and their end by force.

A transaction has a coordinator, which knows it by its transactional id, and it is open in partitions, which know it by
its producer id. It hangs in a partition that still holds it open when the coordinator does not count that partition
in any more: nobody will ever end it there, and readers of committed records wait for it. Only such a one may be ended
in its partition alone; any other is aborted by its coordinator, with the same outcome everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import VersionMismatch, only_result, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.model.errors import InvalidRequest, InvalidTransactionState
from headrace.wire.apis import LIST_TRANSACTIONS
from headrace.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_TRANSACTION_COORDINATOR = 1  # the kind of coordinator
_DURATION_SINCE = 1  # the version of ListTransactions that selects by it


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionView:
    """What the coordinator knows; `start_ms` is of the open or last transaction, -1 if the producer had none yet."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction as one of its partitions knows it."""

    target: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class TransactionAdmin:
    """Administration of transactions over a cluster that the caller opened."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
    ) -> Sequence[ListedTransaction]:
        """The transactional ids of every broker that match all filters, by name.

        `older_than_ms` alone lists open transactions only: brokers, as Kafka's do, count from the beginning of the last
        transaction of an id, also when that one is over.
        """
        wanted = [*states]
        if older_than_ms is not None and not wanted:
            wanted = [*OPEN_STATES]
        request = ListTransactionsRequest(
            state_filters=wanted,
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        view = await self._cluster.call_with_retries(lambda: self._cluster.refresh([]))
        found: list[ListedTransaction] = []
        for node_id in sorted(view.nodes):
            found += await self._cluster.call_with_retries(partial(self._list_at, node_id, request))
        return sorted(found, key=lambda listed: listed.transactional_id)

    async def describe(self, transactional_id: str) -> TransactionView:
        """One transactional id; raises TransactionalIdNotFound."""

        async def ask() -> TransactionView:
            node_id = await transaction_coordinator(self._cluster, transactional_id)
            answer: DescribeTransactionsResponse = await self._cluster.call(
                DescribeTransactionsRequest(transactional_ids=[transactional_id]), node_id=node_id
            )
            told = only_result(answer.transaction_states)
            raise_for_code(told.error_code)
            return TransactionView(
                transactional_id=told.transactional_id,
                state=told.transaction_state,
                coordinator=node_id,
                producer_id=told.producer_id,
                producer_epoch=told.producer_epoch,
                timeout_ms=told.transaction_timeout_ms,
                start_ms=told.transaction_start_time_ms,
                partitions=sorted(TopicPartition(data.topic, p) for data in told.topics for p in data.partitions),
            )

        return await self._cluster.call_with_retries(ask)

    async def abort(self, transactional_id: str) -> TransactionView:
        """Fence the producer, which aborts what it has open; returns what there was."""
        # Asked for first, because to initialise an id that is not known would make it.
        view = await self.describe(transactional_id)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=view.timeout_ms)

        async def ask() -> None:
            node_id = await transaction_coordinator(self._cluster, transactional_id)
            answer: InitProducerIdResponse = await self._cluster.call(request, node_id=node_id)
            raise_for_code(answer.error_code)

        await self._cluster.call_with_retries(ask)
        return view

    async def find_open(self, targets: Iterable[TopicPartition]) -> Sequence[OpenTransaction]:
        """The transactions that are open in these partitions, in order."""
        wanted = set(targets)
        found: list[OpenTransaction] = []

        async def ask() -> None:
            by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
            for target in sorted(wanted):
                by_leader[(await self._cluster.partition(*target)).leader].append(target)
            for node_id, there in by_leader.items():
                found.extend(await self._open_at(node_id, there))
                wanted.difference_update(there)

        await self._cluster.call_with_retries(ask)
        return sorted(found, key=lambda transaction: (transaction.target, transaction.start_offset))

    async def find_hanging(self, targets: Iterable[TopicPartition], older_than_ms: int) -> Sequence[OpenTransaction]:
        """The transactions that hang in these partitions, and have not been written to for so long."""
        now_ms = self._cluster.clock.now_ms()
        quiet = [t for t in await self.find_open(targets) if now_ms - t.last_timestamp_ms >= older_than_ms]
        known = await self._owners({transaction.producer_id for transaction in quiet})
        return [t for t in quiet if _coordinated_transaction(known, t) is None]

    async def check_hanging(self, transaction: OpenTransaction) -> None:
        """Raise InvalidTransactionState if a coordinator will end the transaction."""
        owner = _coordinated_transaction(await self._owners({transaction.producer_id}), transaction)
        if owner is not None:
            raise InvalidTransactionState(
                f"the transaction at offset {transaction.start_offset} of {transaction.target} does not hang: it "
                f"belongs to {owner.transactional_id!r}, whose coordinator will end it or can be told to abort it"
            )

    async def end_hanging(self, transaction: OpenTransaction) -> None:
        """Abort a transaction in one partition; refused unless it hangs there."""
        await self.check_hanging(transaction)
        topic, partition = transaction.target
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )

        async def ask() -> None:
            leader = (await self._cluster.partition(topic, partition)).leader
            answer: WriteTxnMarkersResponse = await self._cluster.call(
                WriteTxnMarkersRequest(markers=[marker]), node_id=leader
            )
            raise_for_code(only_result(only_result(only_result(answer.markers).topics).partitions).error_code)

        await self._cluster.call_with_retries(ask)

    async def _owners(self, producer_ids: set[int]) -> Sequence[TransactionView]:
        """What the coordinators know of these producers."""
        if not producer_ids:
            return []  # to ask for none would be to ask for all
        listed = await self.list(producer_ids=sorted(producer_ids))
        return [await self.describe(transaction.transactional_id) for transaction in listed]

    async def _list_at(self, node_id: int, request: ListTransactionsRequest) -> Sequence[ListedTransaction]:
        if request.duration_filter >= 0:
            transport = await self._cluster.transport(node_id)
            theirs = transport.versions.get(LIST_TRANSACTIONS)
            if theirs is not None and theirs.high < _DURATION_SINCE:
                raise VersionMismatch(f"{transport.peer} cannot select transactions by their age; it is too old")
        answer: ListTransactionsResponse = await self._cluster.call(request, node_id=node_id)
        raise_for_code(answer.error_code)
        if answer.unknown_state_filters:
            raise InvalidRequest(f"broker {node_id} knows no state {', '.join(answer.unknown_state_filters)}")
        return [
            ListedTransaction(told.transactional_id, told.producer_id, told.transaction_state, node_id)
            for told in answer.transaction_states
        ]

    async def _open_at(self, node_id: int, targets: Sequence[TopicPartition]) -> Sequence[OpenTransaction]:
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in targets:
            topics[topic].append(partition)
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersTopic(name=name, partition_indexes=partitions) for name, partitions in topics.items()
            ]
        )
        answer: DescribeProducersResponse = await self._cluster.call(request, node_id=node_id)
        found = []
        for topic_answer in answer.topics:
            for told in topic_answer.partitions:
                raise_for_code(told.error_code, told.error_message)
                target = TopicPartition(topic_answer.name, told.partition_index)
                found += [
                    OpenTransaction(
                        target,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp,
                    )
                    for producer in told.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
        return found


async def transaction_coordinator(cluster: Cluster, transactional_id: str) -> int:
    """The node id of the broker that coordinates the transactions of this id; one attempt."""
    request = FindCoordinatorRequest(
        key=transactional_id, key_type=_TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id]
    )
    answer: FindCoordinatorResponse = await cluster.call(request)
    told: Any = answer.coordinators[0] if answer.coordinators else answer
    raise_for_code(told.error_code, told.error_message)
    return int(told.node_id)


def _coordinated_transaction(known: Iterable[TransactionView], transaction: OpenTransaction) -> TransactionView | None:
    """The one whose coordinator will end this transaction in this partition, too."""
    for view in known:
        if view.producer_id == transaction.producer_id and transaction.target in view.partitions:
            return view
    return None
