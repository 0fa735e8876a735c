"""The transaction coordinator: the transactions of all partitions of `__transaction_state` that this broker leads.

A transactional id belongs to one partition of `__transaction_state`, and the leader of the partition is its
coordinator. `begin` and `end` are called at the start and the end of each leadership; in between there is one
`TransactionShard`.

- Until it is loaded, requests for its ids fail with `CoordinatorLoading`. Requests for ids with damaged records fail
  permanently; other ids of the partition are not affected.
- Requests for ids of other partitions fail with `NotCoordinator`.
- While the registry session of the broker has expired, all requests fail with `CoordinatorNotAvailable`, because
  another broker may be the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from headrace.broker.partition import Partition
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.machines.transactions.transaction_state import TopicPartition, TransactionMetadata
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
)
from headrace.model.names import TRANSACTION_STATE
from headrace.runtime.clock import AnchoredClock, Clock


class TransactionCoordinator:
    """Iterates over the loaded transactions."""

    def __init__(
        self,
        transactions_log: TransactionsLog,
        markers: TransactionMarkers,
        next_producer_id: Callable[[], Awaitable[int]],
        config: BrokerConfig,
        clock: Clock,
        session_expired: Callable[[], bool],
    ) -> None:
        self._log = transactions_log
        self._session_expired = session_expired
        self._markers = markers
        self._next_producer_id = next_producer_id
        self._config = config
        self._clock = clock
        self._now_ms = AnchoredClock(clock).now_ms  # so that a jump of the wall clock does not abort all transactions
        self._looked = clock.monotonic()
        self._shards: dict[int, TransactionShard] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[TransactionMetadata]:
        for led in self._shards.values():
            if led.is_loaded:
                yield from led.transactions

    @property
    def is_loaded(self) -> bool:
        """Whether no partition is still being loaded."""
        return all(led.is_loaded for led in self._shards.values())

    # Lookup

    def find(self, transactional_id: str) -> TransactionShard | None:
        """Return the transactions of the partition of this id, or None if another broker is its coordinator. Raise
        unless requests for it can be served now; call it again after every await."""
        self._ensure_running()
        led = self._shards.get(self._log.partition_index_of(transactional_id))
        if led is not None:
            led.ensure_open(transactional_id)
        return led

    def of(self, transactional_id: str) -> TransactionShard:
        """Like `find_setting`, but raise `NotCoordinator` if another broker is the coordinator."""
        led = self.find(transactional_id)
        if led is None:
            raise NotCoordinator(f"this broker is not the coordinator of {transactional_id}")
        return led

    async def ensure(self, transactional_id: str) -> TransactionShard:
        """Like `of`, but create `__transaction_state` if it does not exist yet."""
        self._ensure_running()
        await self._log.ensure()
        return self.of(transactional_id)

    def ensure_loaded(self) -> None:
        """Raise unless all transactions of this broker are loaded."""
        self._ensure_running()
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still loading its state; retry")

    def holder(self, producer_id: int, partition: TopicPartition) -> TransactionMetadata | None:
        """Return the producer's open transaction that includes the partition, if this broker coordinates it."""
        for led in self._shards.values():
            found = led.transactions.holder(producer_id, partition)
            if found is not None:
                return found
        return None

    def running_ms(self, transaction: TransactionMetadata) -> int:
        """Return the time since the start of the current or last transaction; without any it is long, as in Kafka."""
        return self._now_ms() - transaction.start_ms

    async def new_producer_id(self) -> int:
        """Allocate a producer id that was never used before."""
        try:
            return await self._next_producer_id()
        except HeadraceError as error:
            raise CoordinatorNotAvailable(f"cannot allocate producer ids: {error.message}") from error

    # Leaderships

    def begin(self, partition: Partition) -> None:
        """A leadership of this broker for the partition begins."""
        if partition.topic != TRANSACTION_STATE or self._is_stopped.is_set():
            return
        self._drop(partition.index)
        led = self._shards[partition.index] = TransactionShard(
            partition, self._log, self._markers, self.new_producer_id, self._config, self._now_ms, self._start
        )
        if self._tasks is not None:
            led.begin()

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        led = self._shards.get(partition.index)
        if led is not None and led.partition is partition:
            self._drop(partition.index)

    async def load(self) -> None:
        """Load the transactions of current and future leaderships and complete decided ones, until the coordinator is
        stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for led in self._shards.values():
                led.begin()
            await self._is_stopped.wait()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    def _drop(self, index: int) -> None:
        led = self._shards.pop(index, None)
        if led is not None:
            led.close(NotCoordinator(f"this broker no longer leads {TRANSACTION_STATE}-{index}"))

    # Maintenance

    def tick(self) -> None:
        """Abort transactions that have timed out, and remove expired transactional ids."""
        now = self._clock.monotonic()
        interval = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        if self._is_stopped.is_set() or now - self._looked < interval:
            return
        self._looked = now
        for led in self._shards.values():
            if led.is_loaded:
                led.tick()

    def stop(self) -> None:
        """Fail all waiting requests, because the broker is shutting down; the transactions continue to exist in the
        log."""
        self._is_stopped.set()
        for led in self._shards.values():
            led.close(CoordinatorNotAvailable("the broker is shutting down"))

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is shutting down")
        if self._session_expired():
            raise CoordinatorNotAvailable(
                "the registry session of this broker has expired, so another broker may be the coordinator; retry"
            )
