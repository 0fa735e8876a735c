"""The transaction coordinator: the transactions of all partitions of `__transaction_state` that this broker leads.

`coordination/shards.py` explains when a shard is loaded and closed, and how requests fail otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from headrace.broker.coordination.shards import OwnerCoordinator
from headrace.broker.partition import Partition
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.machines.transactions.transaction_state import TopicPartition, TransactionMetadata
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import CoordinatorNotAvailable, HeadraceError, NotCoordinator
from headrace.runtime.clock import Clock


class TransactionCoordinator(OwnerCoordinator[TransactionShard]):
    _log: TransactionsLog

    def __init__(
        self,
        transactions_log: TransactionsLog,
        markers: TransactionMarkers,
        next_producer_id: Callable[[], Awaitable[int]],
        config: BrokerConfig,
        clock: Clock,
        session_expired: Callable[[], bool],
    ) -> None:
        tick_seconds = config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        super().__init__(transactions_log, clock, session_expired, tick_seconds)
        self._markers = markers
        self._next_producer_id = next_producer_id
        self._config = config

    def transactions(self) -> Iterator[TransactionMetadata]:
        return (transaction for shard in self for transaction in shard.transactions)

    def find(self, transactional_id: str) -> TransactionShard | None:
        """Like `of`, but return None if another broker is the coordinator of the id."""
        self._ensure_running()
        shard = self._shards.get(self._log.partition_index_of(transactional_id))
        if shard is not None:
            shard.ensure_open(transactional_id)
        return shard

    def of(self, transactional_id: str) -> TransactionShard:
        shard = self.find(transactional_id)
        if shard is None:
            raise NotCoordinator(f"this broker is not the coordinator of {transactional_id}")
        return shard

    def holder(self, producer_id: int, partition: TopicPartition) -> TransactionMetadata | None:
        """Return the producer's open transaction that includes the partition, if this broker coordinates it."""
        for shard in self._shards.values():
            found = shard.transactions.holder(producer_id, partition)
            if found is not None:
                return found
        return None

    def running_ms(self, transaction: TransactionMetadata) -> int:
        """Return the time since the start of the current or last transaction; without any it is long, as in Kafka."""
        return self.now_ms() - transaction.start_ms

    async def new_producer_id(self) -> int:
        """Allocate a producer id that was never used before."""
        try:
            return await self._next_producer_id()
        except HeadraceError as error:
            raise CoordinatorNotAvailable(f"cannot allocate producer ids: {error.message}") from error

    def _create_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(
            partition, self._log, self._markers, self.new_producer_id, self._config, self.now_ms, self._start_task
        )
