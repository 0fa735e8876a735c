"""The log behind the transaction coordinator: `__transaction_state`, in Kafka's own record format.

What is appended here is the truth. `settled` says whether the last of it, for one id, would survive a power cut; nobody
is told of anything that is not.
"""

from __future__ import annotations

import logging

from headrace.broker.catalogue import Catalogue
from headrace.broker.state_log import KeyValue, StateLog, StoredMarker
from headrace.broker.transaction_records import read_transaction, tombstone, transaction_record
from headrace.machines.transaction_state import Transaction
from headrace.model.errors import CoordinatorNotAvailable, MalformedFrame
from headrace.model.names import TRANSACTION_STATE
from headrace.runtime.clock import Clock
from headrace.wire.transaction_records import decode_transaction_key

log = logging.getLogger(__name__)


class TransactionsLog:
    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._log = StateLog(catalogue, clock, TRANSACTION_STATE)
        self._end_offsets: dict[str, int] = {}  # behind the last record of an id that this process has appended
        self._unreadable: set[str] = set()

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
        )

    def store(self, transaction: Transaction) -> int:
        """Append the transaction; the offset up to which the log must be durable for that to count."""
        return self._append(transaction.transactional_id, transaction_record(transaction))

    def forget(self, transactional_id: str) -> None:
        self._append(transactional_id, tombstone(transactional_id))
        del self._end_offsets[transactional_id]

    def is_durable(self, transactional_id: str, end_offset: int) -> bool:
        return self._log.is_committed(transactional_id, end_offset)

    async def durable(self, transactional_id: str, end_offset: int) -> None:
        """Return when what was stored with this answer is durable."""
        await self._log.committed(transactional_id, end_offset)

    async def settled(self, transactional_id: str) -> None:
        """Return when all that was stored of the id is durable."""
        end_offset = self._end_offsets.get(transactional_id)
        if end_offset is not None:
            await self._log.committed(transactional_id, end_offset)

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of the coordinator of this id: markers of an older one are refused."""
        return self._log.partition_of(transactional_id).leader_epoch

    async def load(self) -> list[Transaction]:
        """What was last stored of every id that can be read."""
        stored: dict[str, Transaction] = {}
        async for record in self._log.replay():
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
            self._unreadable.discard(transactional_id)
            try:
                if record.value is not None:
                    stored[transactional_id] = read_transaction(transactional_id, record.value)
            except MalformedFrame as error:
                self._unreadable.add(transactional_id)
                log.critical("transactional id %s is out of service: %s", transactional_id, error)
        return [transaction for transaction in stored.values() if self._is_readable(transaction.transactional_id)]

    def ensure_readable(self, transactional_id: str) -> None:
        """An id whose records are damaged must not look like a new one: its last transaction would stay open."""
        self._log.ensure_readable(transactional_id)
        if transactional_id in self._unreadable:
            raise CoordinatorNotAvailable(f"what was stored of {transactional_id} cannot be read")

    def _is_readable(self, transactional_id: str) -> bool:
        try:
            self.ensure_readable(transactional_id)
        except CoordinatorNotAvailable:
            return False
        return True

    def _append(self, transactional_id: str, record: KeyValue) -> int:
        end_offset = self._log.append(transactional_id, [record])
        self._end_offsets[transactional_id] = end_offset
        return end_offset
