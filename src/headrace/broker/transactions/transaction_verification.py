"""Verify that a batch may be appended as part of a transaction, on any leader and with any coordinator.

A partition must durably be part of the producer's open transaction before a batch of it is appended. Otherwise the
partition might never get the marker, and read_committed consumers would wait forever. If this broker is the
coordinator, it is checked in the same step as the append. If another broker is the coordinator, it is queried before,
and `verify` checks that its response is still valid. Once the partition has a batch of the transaction, it will get
the marker, and no further verification is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.cluster.peers import Peers
from headrace.broker.partition import Partition
from headrace.broker.transactions.transaction_coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction_records import partitions_by_topic
from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.broker.transactions.verified_transactions import VerifiedTransactions
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TopicPartition
from headrace.model.errors import CoordinatorNotAvailable, HeadraceError, OperationNotAttempted
from headrace.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

_REQUEST_SECONDS = 5.0
_CONNECTION_KEY = "transactions"
_ADD_PARTITIONS_VERSION = 4  # its errors are those of this broker's own coordinator


class TransactionVerification:
    def __init__(
        self,
        coordinator: TransactionCoordinator,
        transactions_log: TransactionsLog,
        verified: VerifiedTransactions,
        peers: Peers,
    ) -> None:
        self._coordinator = coordinator
        self._log = transactions_log
        self._verified = verified
        self._peers = peers

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, partition: Partition) -> None:
        """Raise unless a batch of this producer's transaction may be appended to the partition in the same step."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        shard = self._coordinator.find(transactional_id)
        if shard is not None:
            shard.verify(transactional_id, producer, (partition.topic, partition.index))
        # The open transaction has one epoch, and the partition itself rejects all others.
        elif partition.state.producers.transactions.first_offset(producer_id) < 0 and not self._verified.holds(
            partition, producer
        ):
            raise CoordinatorNotAvailable(
                f"the coordinator of {transactional_id} has not confirmed that {partition.topic}-{partition.index} is "
                "part of its transaction; retry"
            )

    async def add_to_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Partition],
        *,
        adds: bool,
    ) -> None:
        """Add the partitions to the producer's transaction, or, unless it `adds`, confirm that they are part of it;
        return when that is durable. The transaction may end meanwhile, so call `verify` in the same step as the
        append."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        names = [(partition.topic, partition.index) for partition in partitions]
        shard = self._coordinator.find(transactional_id)
        if shard is not None:
            if adds:
                await shard.add_to_transaction(transactional_id, producer, names)
            return
        verifications = [
            (partition, self._verified.begin_verification(partition, producer)) for partition in partitions
        ]
        try:
            await self._send_add_partitions(transactional_id, producer, names, adds=adds)
        except BaseException:
            for partition, verification in verifications:
                self._verified.give_up(partition, producer, verification)
            raise
        for _, verification in verifications:
            verification.is_confirmed = True

    async def _send_add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, names: Sequence[TopicPartition], *, adds: bool
    ) -> None:
        """Send the request to the coordinator on another broker."""
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    verify_only=not adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                        for topic, indexes in partitions_by_topic(frozenset(names)).items()
                    ],
                )
            ]
        )
        node_id = self._log.node_of(transactional_id)
        try:
            response = await self._peers.call(
                node_id,
                request,
                timeout_seconds=_REQUEST_SECONDS,
                connection_key=_CONNECTION_KEY,
                version_max=_ADD_PARTITIONS_VERSION,
            )
        except HeadraceError as error:
            raise CoordinatorNotAvailable(
                f"cannot reach broker {node_id}, the coordinator of {transactional_id}: {error.message}"
            ) from error
        _check_response(transactional_id, response)


def _check_response(transactional_id: str, response: AddPartitionsToTxnResponse) -> None:
    """Raise the error of the coordinator, with the message for the first rejected partition."""
    from headrace.client.errors import raise_for_code  # imported on first use: keeps startup fast

    raise_for_code(response.error_code)
    codes = [
        result.partition_error_code
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    ]
    if not codes:
        raise CoordinatorNotAvailable(f"the coordinator of {transactional_id} returned no result")
    for code in codes:
        if code != OperationNotAttempted.code:
            raise_for_code(code)
    raise_for_code(max(codes))
