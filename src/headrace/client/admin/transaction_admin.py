"""Administer transactions: list and describe them, abort them, and end hanging ones.

- The coordinator knows a transaction by its transactional id, its partitions by its producer id.
- A transaction hangs in a partition where it is open although the coordinator does not list that partition: nothing
  will end it there, and `read_committed` consumers wait for it. Only a hanging transaction may be ended in a single
  partition. Any other one is aborted by its coordinator, with the same outcome in all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.client.cluster import Cluster
from headrace.client.errors import VersionMismatch, only_result, raise_for_code
from headrace.client.metadata import TopicPartition, partitions_by_topic
from headrace.model.errors import InvalidRequest, InvalidTransactionState
from headrace.wire.apis import LIST_TRANSACTIONS
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
_DURATION_SINCE = 1  # the first version of ListTransactions with a duration filter


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionView:
    """The state at the coordinator; `start_ms` is of the open or last transaction, -1 if there was none yet."""

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
    """The state of an open transaction in one of its partitions."""

    target: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class TransactionAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
    ) -> Sequence[TransactionListing]:
        """The transactional ids of every broker that match all filters, by name. `older_than_ms` without states lists
        open transactions only: brokers, like Kafka's, count from the start of the last transaction of an id, even if
        that has ended."""
        wanted = [*states]
        if older_than_ms is not None and not wanted:
            wanted = [*OPEN_STATES]
        request = ListTransactionsRequest(
            state_filters=wanted,
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        view = await self._cluster.call_with_retries(lambda: self._cluster.refresh([]))
        found: list[TransactionListing] = []
        for node_id in sorted(view.nodes):
            found += await self._cluster.call_with_retries(partial(self._list_at, node_id, request))
        return sorted(found, key=lambda listed: listed.transactional_id)

    async def describe(self, transactional_id: str) -> TransactionView:
        """One transactional id; raises TransactionalIdNotFound."""

        async def attempt() -> TransactionView:
            node_id = await self._cluster.transaction_coordinator(transactional_id)
            response: DescribeTransactionsResponse = await self._cluster.call(
                DescribeTransactionsRequest(transactional_ids=[transactional_id]), node_id=node_id
            )
            result = only_result(response.transaction_states)
            raise_for_code(result.error_code)
            return TransactionView(
                transactional_id=result.transactional_id,
                state=result.transaction_state,
                coordinator=node_id,
                producer_id=result.producer_id,
                producer_epoch=result.producer_epoch,
                timeout_ms=result.transaction_timeout_ms,
                start_ms=result.transaction_start_time_ms,
                partitions=sorted(TopicPartition(data.topic, p) for data in result.topics for p in data.partitions),
            )

        return await self._cluster.call_with_retries(attempt)

    async def abort(self, transactional_id: str) -> TransactionView:
        """Fence the producer, which aborts its open transaction; returns the state before."""
        # Described first, because InitProducerId would create an unknown id.
        view = await self.describe(transactional_id)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=view.timeout_ms)

        async def attempt() -> None:
            node_id = await self._cluster.transaction_coordinator(transactional_id)
            response: InitProducerIdResponse = await self._cluster.call(request, node_id=node_id)
            raise_for_code(response.error_code)

        await self._cluster.call_with_retries(attempt)
        return view

    async def find_open(self, targets: Iterable[TopicPartition]) -> Sequence[OpenTransaction]:
        """The transactions that are open in these partitions, in order."""
        wanted = set(targets)
        found: list[OpenTransaction] = []

        async def attempt() -> None:
            for node_id, there in (await self._cluster.partitions_by_leader(sorted(wanted))).items():
                found.extend(await self._open_at(node_id, there))
                wanted.difference_update(there)

        await self._cluster.call_with_retries(attempt)
        return sorted(found, key=lambda transaction: (transaction.target, transaction.start_offset))

    async def find_hanging(self, targets: Iterable[TopicPartition], older_than_ms: int) -> Sequence[OpenTransaction]:
        """The transactions that hang in these partitions and were not written to for this long."""
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
        """Abort a transaction in one partition; raises InvalidTransactionState unless it hangs there."""
        await self.check_hanging(transaction)
        topic, partition = transaction.target
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )

        async def attempt() -> None:
            response: WriteTxnMarkersResponse = await self._cluster.call_leader(
                transaction.target, WriteTxnMarkersRequest(markers=[marker])
            )
            raise_for_code(only_result(only_result(only_result(response.markers).topics).partitions).error_code)

        await self._cluster.call_with_retries(attempt)

    async def _owners(self, producer_ids: set[int]) -> Sequence[TransactionView]:
        if not producer_ids:
            return []  # an empty filter would match all
        listed = await self.list(producer_ids=sorted(producer_ids))
        return [await self.describe(transaction.transactional_id) for transaction in listed]

    async def _list_at(self, node_id: int, request: ListTransactionsRequest) -> Sequence[TransactionListing]:
        if request.duration_filter >= 0:
            transport = await self._cluster.transport(node_id)
            theirs = transport.versions.get(LIST_TRANSACTIONS)
            if theirs is not None and theirs.high < _DURATION_SINCE:
                raise VersionMismatch(f"{transport.peer} cannot select transactions by their age; it is too old")
        response: ListTransactionsResponse = await self._cluster.call(request, node_id=node_id)
        raise_for_code(response.error_code)
        if response.unknown_state_filters:
            raise InvalidRequest(f"broker {node_id} knows no state {', '.join(response.unknown_state_filters)}")
        return [
            TransactionListing(result.transactional_id, result.producer_id, result.transaction_state, node_id)
            for result in response.transaction_states
        ]

    async def _open_at(self, node_id: int, targets: Sequence[TopicPartition]) -> Sequence[OpenTransaction]:
        topics = partitions_by_topic(targets)
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersTopic(name=name, partition_indexes=partitions) for name, partitions in topics.items()
            ]
        )
        response: DescribeProducersResponse = await self._cluster.call(request, node_id=node_id)
        found = []
        for described in response.topics:
            for result in described.partitions:
                raise_for_code(result.error_code, result.error_message)
                target = TopicPartition(described.name, result.partition_index)
                found += [
                    OpenTransaction(
                        target,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp,
                    )
                    for producer in result.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
        return found


def _coordinated_transaction(known: Iterable[TransactionView], transaction: OpenTransaction) -> TransactionView | None:
    """The transaction at a coordinator that will end this one in its partition."""
    for view in known:
        if view.producer_id == transaction.producer_id and transaction.target in view.partitions:
            return view
    return None
