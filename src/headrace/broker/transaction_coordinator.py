"""The coordinator of transactions: knows which of them are here, and reads those whose lead has just begun.

A transactional id belongs to one partition of `__transaction_state`, and whoever leads that partition coordinates it.
`begin` and `end` are told of every lead; in between there is one `LedTransactions`, made anew for each lead. Until it
is loaded everything that concerns its ids is refused as "loading"; ids whose records turn out to be damaged are refused
from then on, and the others go on. Ids of partitions that somebody else leads are refused with `NotCoordinator`.

While the broker's registry session has expired, all ids are rejected with `CoordinatorNotAvailable`: another broker may
coordinate them by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from headrace.broker.led_transactions import LedTransactions
from headrace.broker.partition import Partition
from headrace.broker.transaction_markers import TransactionMarkers
from headrace.broker.transactions_log import TransactionsLog
from headrace.machines.transaction_state import TopicPartition, Transaction
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
    """Iterates over what is here and loaded."""

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
        self._now_ms = AnchoredClock(clock).now_ms  # a jump of the wall clock must not abort every transaction
        self._looked = clock.monotonic()
        self._led: dict[int, LedTransactions] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[Transaction]:
        for led in self._led.values():
            if led.is_loaded:
                yield from led.transactions

    @property
    def is_loaded(self) -> bool:
        """Nothing that is here waits to be read."""
        return all(led.is_loaded for led in self._led.values())

    # Who is here

    def find(self, transactional_id: str) -> LedTransactions | None:
        """The transactions among which those of this id are; None if another broker coordinates it. Raises unless
        requests for it can be answered now: ask again after every wait."""
        self._ensure_running()
        led = self._led.get(self._log.index_of(transactional_id))
        if led is not None:
            led.ensure_open(transactional_id)
        return led

    def of(self, transactional_id: str) -> LedTransactions:
        """The same, for those who must ask the coordinator and nobody else."""
        led = self.find(transactional_id)
        if led is None:
            raise NotCoordinator(f"this broker is not the coordinator of {transactional_id}")
        return led

    async def ensure(self, transactional_id: str) -> LedTransactions:
        """The same for the first id of all, too, for which the log is made."""
        self._ensure_running()
        await self._log.ensure()
        return self.of(transactional_id)

    def ensure_loaded(self) -> None:
        """Raise unless all transactions that are here can be told."""
        self._ensure_running()
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still loading its state; retry")

    def holder(self, producer_id: int, partition: TopicPartition) -> Transaction | None:
        """The open transaction of this producer that will tell the partition its outcome, if it is here."""
        for led in self._led.values():
            found = led.transactions.holder(producer_id, partition)
            if found is not None:
                return found
        return None

    def running_ms(self, transaction: Transaction) -> int:
        """How long ago the current or last transaction began; an id that has had none counts as old, as in Kafka."""
        return self._now_ms() - transaction.start_ms

    async def new_producer_id(self) -> int:
        """An id that no producer had before."""
        try:
            return await self._next_producer_id()
        except HeadraceError as error:
            raise CoordinatorNotAvailable(f"cannot allocate producer ids: {error.message}") from error

    # Leads

    def begin(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic != TRANSACTION_STATE or self._is_stopped.is_set():
            return
        self._drop(partition.index)
        led = self._led[partition.index] = LedTransactions(
            partition, self._log, self._markers, self.new_producer_id, self._config, self._now_ms, self._start
        )
        if self._tasks is not None:
            led.begin()

    def end(self, partition: Partition) -> None:
        """It leads it no longer, or no longer in the epoch in which it did."""
        led = self._led.get(partition.index)
        if led is not None and led.partition is partition:
            self._drop(partition.index)

    async def load(self) -> None:
        """Read what this broker has begun to lead, and all that it will, and end what is decided; returns when the
        coordinator is stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for led in self._led.values():
                led.begin()
            await self._is_stopped.wait()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    def _drop(self, index: int) -> None:
        led = self._led.pop(index, None)
        if led is not None:
            led.close(NotCoordinator(f"this broker no longer leads {TRANSACTION_STATE}-{index}"))

    # What time asks

    def tick(self) -> None:
        """Abort what has been open for too long, forget ids that nobody uses."""
        now = self._clock.monotonic()
        interval = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        if self._is_stopped.is_set() or now - self._looked < interval:
            return
        self._looked = now
        for led in self._led.values():
            if led.is_loaded:
                led.tick()

    def stop(self) -> None:
        """Answer everybody who waits: the broker is going down, the transactions live on in the log."""
        self._is_stopped.set()
        for led in self._led.values():
            led.close(CoordinatorNotAvailable("the broker is shutting down"))

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is shutting down")
        if self._session_expired():
            raise CoordinatorNotAvailable(
                "the registry session of this broker has expired, so another broker may be the coordinator; retry"
            )
