"""The log behind the transaction coordinator: `__transaction_state`, in Kafka's own record format.

The log is authoritative, and responses are sent only after their records are committed. All members of a joint commit
and its own record are in one partition, so they are stored atomically in one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.coordination.state_log import StateLog, StoredTransactionMarker
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_records import (
    joint_commit_record,
    joint_commit_tombstone,
    read_joint_commit,
    read_transaction,
    tombstone,
    transaction_record,
)
from headrace.machines.transactions.joint_commits import JointCommit, joint_commit_owner_id, partitioning_id
from headrace.machines.transactions.transaction_state import TransactionMetadata
from headrace.model.errors import CoordinatorNotAvailable, MalformedFrame, MessageTooLarge
from headrace.model.names import TRANSACTION_STATE
from headrace.runtime.clock import Clock
from headrace.wire.state_records.transaction_records import decode_bundle_key, decode_transaction_key

log = logging.getLogger(__name__)

_STORED_BYTES_MAX = 32 << 20  # per batch: replicas hold it in memory as a whole


class StoredTransactions(NamedTuple):
    """`unreadable` are transactional ids, and owner ids of bundles."""

    transactions: list[TransactionMetadata]
    joint_commits: list[JointCommit]
    unreadable: frozenset[str]


class TransactionsLog(StateLog):
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        super().__init__(catalogue, clock, TRANSACTION_STATE)

    async def ensure(self) -> None:
        config = self.catalogue.config
        await self.ensure_topic(
            config.transaction_state_log_num_partitions,
            {
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                # Independent of the default for other topics: an outcome must not be lost after partitions have its
                # markers.
                "flush.messages": "1",
            },
            config.transaction_state_log_replication_factor,
        )

    def partition_index_of(self, owner: str) -> int:
        return super().partition_index_of(partitioning_id(owner))

    def node_of(self, transactional_id: str) -> int:
        leader = self.catalogue.leader_node(TRANSACTION_STATE, self.partition_index_of(transactional_id))
        if leader is None:
            raise CoordinatorNotAvailable(f"{transactional_id} has no coordinator now; retry")
        return leader.node_id

    def store(self, transactions: Sequence[TransactionMetadata], bundle: JointCommit | None = None) -> int:
        """Append in one batch; return the end offset. Several transactions must belong to one bundle."""
        records = [transaction_record(transaction) for transaction in transactions]
        if bundle is not None:
            records.append(joint_commit_record(bundle))
        size_bytes = sum(len(key) + len(value or b"") for key, value in records)
        if size_bytes > _STORED_BYTES_MAX:
            raise MessageTooLarge(
                f"the state of the joint commit takes {size_bytes} bytes, which do not fit into a batch"
            )
        owner = transactions[0].transactional_id if bundle is None else joint_commit_owner_id(bundle.name)
        return self.append(owner, records)

    def confirm(self, name: str, bundle: JointCommit | None) -> int:
        """Append the current state of a bundle again, or its absence. When that is durable, no other broker has led the
        partition meanwhile, so the state is confirmed."""
        record = joint_commit_tombstone(name) if bundle is None else joint_commit_record(bundle)
        return self.append(joint_commit_owner_id(name), [record])

    def forget(self, transactional_id: str) -> None:
        self.append(transactional_id, [tombstone(transactional_id)])

    def forget_joint_commit(self, name: str) -> None:
        self.append(joint_commit_owner_id(name), [joint_commit_tombstone(name)])

    async def load_transactions(self, partition: Partition) -> StoredTransactions:
        """Return the last stored state of every id and bundle of a partition whose leadership has just begun."""
        transactions: dict[str, TransactionMetadata] = {}
        joint_commits: dict[str, JointCommit] = {}
        unreadable: set[str] = set()
        async for record in self.load(partition):
            if isinstance(record, StoredTransactionMarker):
                continue
            try:
                transactional_id, bundle = decode_transaction_key(record.key), decode_bundle_key(record.key)
            except MalformedFrame as error:
                log.error("invalid key in the transaction log topic=%s error=%s", TRANSACTION_STATE, error)
                continue
            owner = transactional_id if bundle is None else joint_commit_owner_id(bundle)
            if owner is None:
                continue
            # A record contains the whole state and replaces all earlier ones.
            transactions.pop(owner, None)
            joint_commits.pop(owner, None)
            unreadable.discard(owner)
            try:
                if record.value is None:
                    continue
                if bundle is None:
                    transactions[owner] = read_transaction(owner, record.value)
                else:
                    joint_commits[owner] = read_joint_commit(bundle, record.value)
            except MalformedFrame as error:
                unreadable.add(owner)
                log.critical("transactional id is out of service transactional_id=%s error=%s", owner, error)
        if self.is_damaged(partition):
            transactions.clear()
            joint_commits.clear()
        return StoredTransactions(list(transactions.values()), list(joint_commits.values()), frozenset(unreadable))
