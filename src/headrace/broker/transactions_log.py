"""The log behind the transaction coordinator: `__transaction_state`, in Kafka's own record format.

What is appended here is the truth; nobody is told of anything that is not committed.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from headrace.broker.catalogue import Catalogue
from headrace.broker.partition import Partition
from headrace.broker.state_log import StateLog, StoredMarker
from headrace.broker.transaction_records import read_transaction, tombstone, transaction_record
from headrace.machines.transaction_state import Transaction
from headrace.model.errors import CoordinatorNotAvailable, MalformedFrame
from headrace.model.names import TRANSACTION_STATE
from headrace.runtime.clock import Clock
from headrace.wire.transaction_records import decode_transaction_key

log = logging.getLogger(__name__)


class StoredTransactions(NamedTuple):
    transactions: list[Transaction]
    unreadable: frozenset[str]


class TransactionsLog:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._log = StateLog(catalogue, clock, TRANSACTION_STATE)

    async def ensure(self) -> None:
        """Make the topic when the first transactional id shows up."""
        config = self._catalogue.config
        await self._log.ensure(
            config.transaction_state_log_num_partitions,
            {
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                # Whatever is the default for other topics: an outcome must not be lost after partitions were told.
                "flush.messages": "1",
            },
            config.transaction_state_log_replication_factor,
        )

    def index_of(self, transactional_id: str) -> int:
        """In which partition everything of this id lies: who leads it coordinates the id."""
        return self._log.index_of(transactional_id)

    def node_of(self, transactional_id: str) -> int:
        """The broker that coordinates this id."""
        leader = self._catalogue.leader_node(TRANSACTION_STATE, self.index_of(transactional_id))
        if leader is None:
            raise CoordinatorNotAvailable(f"no broker coordinates {transactional_id} at present")
        return leader.node_id

    def store(self, transaction: Transaction) -> int:
        """Append the transaction; the offset up to which the log must be durable for that to count."""
        return self._log.append(transaction.transactional_id, [transaction_record(transaction)])

    def forget(self, transactional_id: str) -> None:
        self._log.append(transactional_id, [tombstone(transactional_id)])

    def is_durable(self, transactional_id: str, end_offset: int) -> bool:
        return self._log.is_committed(transactional_id, end_offset)

    async def durable(self, transactional_id: str, end_offset: int) -> None:
        """Return when what was stored with this answer is durable."""
        await self._log.committed(transactional_id, end_offset)

    async def load(self, partition: Partition) -> StoredTransactions:
        """What was last stored of every id of this partition, which is led here since just now."""
        stored: dict[str, Transaction] = {}
        unreadable: set[str] = set()
        async for record in self._log.load(partition):
            if isinstance(record, StoredMarker):
                continue
            try:
                transactional_id = decode_transaction_key(record.key)
            except MalformedFrame as error:
                log.error("a key of %s cannot be read: %s", TRANSACTION_STATE, error)
                continue
            if transactional_id is None:
                continue
            # A record is the whole state: whatever came before it does not matter any more.
            stored.pop(transactional_id, None)
            unreadable.discard(transactional_id)
            try:
                if record.value is not None:
                    stored[transactional_id] = read_transaction(transactional_id, record.value)
            except MalformedFrame as error:
                unreadable.add(transactional_id)
                log.critical("transactional id %s is out of service: %s", transactional_id, error)
        if self._log.is_damaged(partition):
            stored.clear()
        return StoredTransactions(list(stored.values()), frozenset(unreadable))

    def ensure_readable(self, transactional_id: str) -> None:
        """An id whose records are damaged must not look like a new one: its last transaction would stay open."""
        self._log.ensure_readable(transactional_id)
