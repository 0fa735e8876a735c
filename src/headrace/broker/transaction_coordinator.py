"""The coordinator of transactions: runs the machine, keeps what it decides, and tells the partitions how it ended.

A change is appended to `__transaction_state`, applied in the same step, and answered when it is durable; refusals, too,
wait for what they rest on. An end takes three steps, and nothing can come between them:

1. the decision (Prepare) is stored, and durable: from here on the outcome is fixed;
2. every partition of the transaction is told, and has it on disk;
3. that it is over (Complete) is stored, and whoever waits is answered.

A crash anywhere in between is made good at the next start: what is found decided is told to its partitions again.
The third step need not be durable when the answer leaves: until it is, a restart finds the decision and does the second
step again, to the same effect; and whatever the producer does next for this id lies behind it in the same log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headrace.broker.partition import Partition
from headrace.broker.transaction_markers import TransactionMarkers, pauses
from headrace.broker.transactions_log import TransactionsLog
from headrace.machines.transaction_state import Producer, TopicPartition, Transaction
from headrace.machines.transactions import Transactions
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidTransactionState,
)
from headrace.runtime.clock import Clock
from headrace.runtime.eager import in_task

log = logging.getLogger(__name__)

_ENDING_SECONDS = 5.0  # how long a request waits for partitions to be told before it says "ask again"


class TransactionCoordinator:
    def __init__(
        self,
        transactions_log: TransactionsLog,
        markers: TransactionMarkers,
        next_producer_id: Callable[[], Awaitable[int]],
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self.transactions = Transactions(config.transaction_max_timeout_ms)
        self.is_loaded = False
        self._log = transactions_log
        self._markers = markers
        self._next_producer_id = next_producer_id
        self._config = config
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started = clock.monotonic()
        self._looked = self._started
        self._is_stopped = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._ending: dict[str, asyncio.Event] = {}
        # Partitions that are being made part of a transaction, and from which end of the log on they durably are.
        self._joining: dict[str, dict[TopicPartition, int]] = {}

    async def load(self) -> None:
        """Rebuild the transactions from the log, then end those that are decided, and all later ones; returns when the
        coordinator is stopped."""
        now_ms = self._now_ms()
        for transaction in await self._log.load():
            self.transactions.restore(transaction, now_ms)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.is_loaded = True
            ending = [transaction for transaction in self.transactions if transaction.is_ending]
            for transaction in ending:
                self._begin_to_end(transaction)
            if len(self.transactions):
                log.info("read %d transactional ids, %d to be ended", len(self.transactions), len(ending))
            await self._is_stopped.wait()

    def ensure_loaded(self, transactional_id: str | None = None) -> None:
        """Raise unless requests (for this id) can be answered now."""
        if self._is_stopped.is_set():
            raise CoordinatorNotAvailable("the broker is going down")
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still reading its log")
        if transactional_id is not None:
            self._log.ensure_readable(transactional_id)

    # What producers ask

    async def new_producer_id(self) -> int:
        """An id for a producer without transactions."""
        try:
            return await self._next_producer_id()
        except HeadraceError as error:
            raise CoordinatorNotAvailable(f"there are no producer ids to be had: {error.message}") from error

    async def init(self, transactional_id: str, timeout_ms: int, claim: Producer | None) -> Producer:
        """Make the asker the producer of this id; what the one before it left open is aborted first."""
        self.ensure_loaded()
        await self._log.ensure()
        transaction = await self._init(transactional_id, timeout_ms, claim)
        if transaction.is_ending:
            await self._over(transactional_id)
            transaction = await self._init(transactional_id, timeout_ms, claim)
            if transaction.is_ending:
                raise ConcurrentTransactions(f"somebody else uses {transactional_id} at the same time; ask again")
        return transaction.producer

    async def enlist(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Partition]
    ) -> None:
        """Make the partitions part of the producer's transaction, which begins with the first of them; return when that
        is durable. The transaction may have ended meanwhile: `verify` in the same step as the append."""
        self.ensure_loaded(transactional_id)
        names = {(partition.topic, partition.index) for partition in partitions}
        try:
            transaction = self.transactions.add(
                transactional_id, Producer(producer_id, producer_epoch), names, self._now_ms()
            )
        except HeadraceError:
            await self._log.settled(transactional_id)
            raise
        before = self.transactions.find(transactional_id)
        if before is not None and before is not transaction:
            joining = transaction.partitions - before.partitions
            end_offset = self._store(transaction)
            self._joining.setdefault(transactional_id, {}).update(dict.fromkeys(joining, end_offset))
        await self._joined(transactional_id, names)

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, partition: Partition) -> None:
        """Raise unless the partition belongs to this producer's open transaction, durably: else a crash could leave it
        with a transaction that nobody ends."""
        self.ensure_loaded(transactional_id)
        where = partition.topic, partition.index
        self.transactions.verify(transactional_id, Producer(producer_id, producer_epoch), where)
        end_offset = self._joining.get(transactional_id, {}).get(where)
        if end_offset is not None and not self._log.is_durable(transactional_id, end_offset):
            raise ConcurrentTransactions(
                f"{partition.topic}-{partition.index} is just being made part of the transaction; ask again"
            )

    async def end(self, transactional_id: str, producer: Producer, *, is_commit: bool, bumps: bool) -> Producer:
        """Commit or abort; returns when readers see it, with what the producer is from now on."""
        self.ensure_loaded(transactional_id)
        is_known = self.transactions.find(transactional_id) is not None
        new_producer_id = await self._spare_producer_id(transactional_id) if is_known else None
        try:
            transaction = self.transactions.end(
                transactional_id, producer, new_producer_id, self._now_ms(), is_commit=is_commit, bumps=bumps
            )
        except HeadraceError:
            await self._log.settled(transactional_id)
            raise
        await self._change(transaction)
        if transaction.is_ending:
            await self._over(transactional_id)
        return transaction.coming

    # What operators ask

    def open_ms(self, transaction: Transaction) -> int:
        """For how long it has been open; -1 if it is not."""
        return self._now_ms() - transaction.start_ms if transaction.is_open else -1

    async def write_marker(
        self, partition: Partition, producer: Producer, coordinator_epoch: int, *, is_commit: bool
    ) -> None:
        """End a transaction in one partition, where it hangs: no coordinator counts the partition in any more."""
        self.ensure_loaded()
        holder = self.transactions.holder(producer.id, (partition.topic, partition.index))
        if holder is not None:
            raise InvalidTransactionState(
                f"this is the transaction of {holder.transactional_id}, in state {holder.status}: end it there, so "
                "that it ends alike in all its partitions"
            )
        await self._markers.write(partition, producer, coordinator_epoch, is_commit=is_commit)

    # What time asks

    def tick(self) -> None:
        """Abort what has been open for too long, forget ids that nobody uses."""
        now = self._clock.monotonic()
        interval = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        if not self.is_loaded or self._is_stopped.is_set() or now - self._looked < interval:
            return
        self._looked = now
        now_ms = self._now_ms()
        for transaction in self.transactions.timed_out(now_ms):
            transactional_id = transaction.transactional_id
            try:
                self._store(transaction)
                log.warning("the transaction of %s has timed out and is aborted", transactional_id)
            except HeadraceError as error:
                log.error("the transaction of %s has timed out and cannot be aborted: %s", transactional_id, error)
        for transactional_id in self.transactions.expired(now_ms, self._config.transactional_id_expiration_ms):
            try:
                self._log.forget(transactional_id)
                self.transactions.forget(transactional_id)
            except HeadraceError as error:
                log.warning("%s, which nobody uses any more, stays for now: %s", transactional_id, error)

    def stop(self) -> None:
        """Answer everybody who waits: the broker is going down, the transactions live on in the log."""
        self._is_stopped.set()
        for over in self._ending.values():
            over.set()

    # Carrying out

    async def _init(self, transactional_id: str, timeout_ms: int, claim: Producer | None) -> Transaction:
        self.ensure_loaded(transactional_id)
        new_producer_id = await self._spare_producer_id(transactional_id)
        try:
            transaction = self.transactions.init(transactional_id, timeout_ms, claim, new_producer_id, self._now_ms())
        except HeadraceError:
            await self._log.settled(transactional_id)
            raise
        await self._change(transaction)
        return transaction

    async def _spare_producer_id(self, transactional_id: str) -> int | None:
        """A new producer id if one is needed. What is true when this returns is true until the next wait."""
        new_producer_id = None
        while new_producer_id is None and self.transactions.needs_producer_id(transactional_id):
            new_producer_id = await self.new_producer_id()
        self.ensure_loaded(transactional_id)
        return new_producer_id

    async def _change(self, transaction: Transaction) -> None:
        """Store it unless it is the present one already; return when it is durable."""
        if transaction is not self.transactions.find(transaction.transactional_id):
            self._store(transaction)
        await self._log.settled(transaction.transactional_id)

    def _store(self, transaction: Transaction) -> int:
        """Append and apply in one step, and begin to end what is decided by it."""
        end_offset = self._log.store(transaction)
        self.transactions.apply(transaction)
        if transaction.is_ending:
            self._begin_to_end(transaction)
        return end_offset

    def _begin_to_end(self, transaction: Transaction) -> None:
        assert self._tasks is not None
        transactional_id = transaction.transactional_id
        assert transactional_id not in self._ending
        self._joining.pop(transactional_id, None)
        self._ending[transactional_id] = asyncio.Event()
        self._tasks.create_task(self._end(transaction))

    async def _end(self, transaction: Transaction) -> None:
        """The second and third step of an end, as often as it takes."""
        transactional_id = transaction.transactional_id
        await self._decided(transactional_id)
        await self._markers.tell_all(transaction, self._log.epoch_of(transactional_id))
        for pause in pauses():
            try:
                self._store(self.transactions.ended(transactional_id, self._now_ms()))
                break
            except HeadraceError as error:
                log.error("that the transaction of %s is over cannot be stored: %s", transactional_id, error)
            await asyncio.sleep(pause)
        self._ending.pop(transactional_id).set()

    async def _decided(self, transactional_id: str) -> None:
        """Return when the decision is durable. Until then no partition may hear of it: a crash could take it back, and
        the producer decide otherwise."""
        for pause in pauses():
            try:
                await self._log.settled(transactional_id)
                return
            except HeadraceError as error:
                log.error("the end of the transaction of %s cannot be stored: %s", transactional_id, error)
            await asyncio.sleep(pause)

    async def _over(self, transactional_id: str) -> None:
        """Wait until a transaction that is ending is over, but not for ever: a partition may be out of service."""
        await in_task()
        over = self._ending.get(transactional_id)
        if over is None:
            return
        try:
            async with asyncio.timeout(_ENDING_SECONDS):
                await over.wait()
        except TimeoutError:
            raise ConcurrentTransactions(
                f"not all partitions of the transaction of {transactional_id} take its end; ask again"
            ) from None
        self.ensure_loaded()

    async def _joined(self, transactional_id: str, names: set[TopicPartition]) -> None:
        """Return when the partitions are durably part of the transaction."""
        joining = self._joining.get(transactional_id)
        if joining is None:
            return
        end_offset = max((joining[name] for name in names if name in joining), default=None)
        if end_offset is None:
            return
        await self._log.durable(transactional_id, end_offset)
        for name in names:
            if joining.get(name, end_offset + 1) <= end_offset:
                del joining[name]

    def _now_ms(self) -> int:
        """Wall time as of the start, carried on by the monotonic clock: a jump must not abort every transaction."""
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)
