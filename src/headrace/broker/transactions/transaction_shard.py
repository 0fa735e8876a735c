"""The transactions of one partition of `__transaction_state`, for one leadership of this broker.

A change is appended to the partition and applied in one step, and answered when it is committed. Errors also wait until
the state that they are based on is committed. A transaction ends in three steps:

1. The decision (Prepare) is stored and committed: from now on the outcome is fixed.
2. A marker is written to every partition of the transaction, and committed.
3. The completion (Complete) is stored, and the waiting requests are answered.

After a crash or the end of the leadership in between, the next leader completes the transaction: it writes the markers
of all decided transactions again. The response does not wait for the commit of the third step: until then, the next
leader finds the decision and repeats the second step with the same effect, and later requests of the producer for this
id are appended after it to the same log. A joint commit decides all its members with one append; then each of them ends
like any other transaction.

Nothing is appended or answered after the end of the leadership, which is checked after every await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from headrace.broker.coordination.shards import Shard
from headrace.broker.partition import Partition
from headrace.broker.transactions.transaction_markers import TransactionMarkers, retry_pauses
from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.machines.transactions.joint_commits import (
    JointCommit,
    JointCommitMember,
    JointCommits,
    joint_commit_owner_id,
)
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TopicPartition, TransactionMetadata
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidRequest,
    NotCoordinator,
)
from headrace.runtime.inline_start import switch_to_task

log = logging.getLogger(__name__)

StartTask = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_ENDING_SECONDS = 5.0  # how long a request waits for the markers before it fails with a retriable error


class TransactionShard(Shard):
    def __init__(
        self,
        partition: Partition,
        transactions_log: TransactionsLog,
        markers: TransactionMarkers,
        new_producer_id: Callable[[], Awaitable[int]],
        config: BrokerConfig,
        now_ms: Callable[[], int],
        start: StartTask,
    ) -> None:
        super().__init__(partition)
        self.transactions = TransactionStates(config.transaction_max_timeout_ms)
        self.joint_commits = JointCommits(self.transactions)
        self._epoch = partition.leader_epoch
        self._log = transactions_log
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._config = config
        self._now_ms = now_ms
        self._start_task = start
        self._closed: HeadraceError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreadable: frozenset[str] = frozenset()
        # End offset of the last record of an id, or of a bundle by its owner id, that was appended in this leadership.
        self._end_offsets: dict[str, int] = {}
        self._ending: dict[str, asyncio.Event] = {}
        # Partitions that are being added to a transaction, and the end offset that must be committed for that.
        self._joining: dict[str, dict[TopicPartition, int]] = {}

    async def load(self) -> None:
        """Load the stored state, then complete decided transactions."""
        stored = await self._log.load_transactions(self.partition)
        now_ms = self._now_ms()
        for transaction in stored.transactions:
            self.transactions.restore(transaction, now_ms)
        for bundle in stored.joint_commits:
            self.joint_commits.restore(bundle, now_ms)
        self._unreadable = stored.unreadable
        self.is_loaded = True
        ending = [transaction for transaction in self.transactions if transaction.is_ending]
        for transaction in ending:
            self._start_ending(transaction)
        if len(self.transactions):
            log.info(
                "transaction state loaded transactional_ids=%d partition=%s-%d ending=%d",
                len(self.transactions),
                self.partition.topic,
                self.partition.index,
                len(ending),
            )

    def close(self, error: HeadraceError) -> None:
        self._closed = error
        for task in self._tasks:
            task.cancel()
        for over in self._ending.values():
            over.set()

    def ensure_open(self, transactional_id: str | None = None) -> None:
        """Raise unless requests (for this id) can be served now."""
        if self._closed is not None:
            raise self._closed
        if not self.partition.is_leader or self.partition.leader_epoch != self._epoch:
            raise NotCoordinator("another broker is the coordinator of these transactions now")
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still loading its state; retry")
        if transactional_id is not None:
            self._log.ensure_readable(transactional_id)
            if transactional_id in self._unreadable:
                raise CoordinatorNotAvailable(
                    f"the stored state of {transactional_id} is damaged; see the log of the broker"
                )

    # Requests of producers

    async def init(
        self, transactional_id: str, timeout_ms: int, claim: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        transaction = await self._init(transactional_id, timeout_ms, claim)
        if transaction.is_ending:
            await self._wait_until_ended(transactional_id)
            transaction = await self._init(transactional_id, timeout_ms, claim)
            if transaction.is_ending:
                raise ConcurrentTransactions(f"another request for {transactional_id} is in progress; retry")
        return transaction.producer

    async def add_to_transaction(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        try:
            transaction = self.transactions.add(transactional_id, producer, partitions, self._now_ms())
        except HeadraceError:
            await self._settled(transactional_id)
            raise
        before = self.transactions.find(transactional_id)
        if before is not None and before is not transaction:
            joining = transaction.partitions - before.partitions
            end_offset = self._store(transaction)
            self._joining.setdefault(transactional_id, {}).update(dict.fromkeys(joining, end_offset))
        await self._joined(transactional_id, partitions)

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition) -> None:
        self.transactions.verify(transactional_id, producer, partition)
        end_offset = self._joining.get(transactional_id, {}).get(partition)
        if end_offset is not None and not self._log.is_committed(transactional_id, end_offset):
            raise ConcurrentTransactions(f"{partition[0]}-{partition[1]} is being added to the transaction; retry")

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool, bumps_epoch: bool
    ) -> ProducerIdAndEpoch:
        is_known = self.transactions.find(transactional_id) is not None
        new_producer_id = await self._new_producer_id_if_needed(transactional_id) if is_known else None
        try:
            transaction = self.transactions.end(
                transactional_id,
                producer,
                new_producer_id,
                self._now_ms(),
                is_commit=is_commit,
                bumps_epoch=bumps_epoch,
            )
        except HeadraceError:
            await self._settled(transactional_id)
            raise
        await self._change(transaction)
        if transaction.is_ending:
            await self._wait_until_ended(transactional_id)
        return transaction.next_producer

    # Requests of the participants of a joint commit

    async def end_bundle(
        self, name: str, sequence: int, members: Sequence[JointCommitMember], *, is_commit: bool, digest: str = ""
    ) -> bool:
        """Commit the members jointly; return whether they are committed, now or before. If not, all are aborted."""
        concerned = [joint_commit_owner_id(name), *(member.transactional_id for member in members)]
        for transactional_id in concerned:
            self.ensure_open(transactional_id)
        now_ms = self._now_ms()
        try:
            if is_commit:
                decision = self.joint_commits.commit(name, sequence, members, now_ms, digest)
            else:
                decision = self.joint_commits.abort(name, members, now_ms)
            if decision.transactions or decision.bundle is not None:
                self._store(*decision.transactions, bundle=decision.bundle)
            else:
                self._confirm(name)
        except InvalidRequest:
            raise
        except HeadraceError:
            self._confirm(name)
            await self._settled(*concerned)
            raise
        concerned += (transaction.transactional_id for transaction in decision.transactions)
        await self._settled(*concerned)
        await self._wait_until_ended(*concerned)
        return decision.is_committed

    async def describe_bundle(self, name: str) -> JointCommit | None:
        bundle = self.joint_commits.find(name)
        await self._settled(joint_commit_owner_id(name))
        return bundle

    # Maintenance

    def tick(self) -> None:
        """Abort transactions that have timed out, and remove expired transactional ids."""
        now_ms = self._now_ms()
        for transaction in self.transactions.timed_out(now_ms):
            transactional_id = transaction.transactional_id
            try:
                self._store(transaction)
                log.warning("aborting a transaction that has timed out transactional_id=%s", transactional_id)
            except HeadraceError as error:
                log.error(
                    "aborting a transaction that has timed out failed transactional_id=%s error=%s",
                    transactional_id,
                    error,
                )
        for transactional_id in self.transactions.expired(now_ms, self._config.transactional_id_expiration_ms):
            try:
                self._log.forget(transactional_id)
            except HeadraceError as error:
                log.warning(
                    "removing an expired transactional id failed transactional_id=%s error=%s", transactional_id, error
                )
                continue
            self.transactions.forget(transactional_id)
            self._end_offsets.pop(transactional_id, None)
        for name in self.joint_commits.expired(now_ms, self._config.transactional_id_expiration_ms):
            try:
                self._log.forget_joint_commit(name)
            except HeadraceError as error:
                log.warning("removing an expired bundle failed bundle=%s error=%s", name, error)
                continue
            self.joint_commits.forget(name)
            self._end_offsets.pop(joint_commit_owner_id(name), None)

    # Execution

    async def _init(
        self, transactional_id: str, timeout_ms: int, claim: ProducerIdAndEpoch | None
    ) -> TransactionMetadata:
        new_producer_id = await self._new_producer_id_if_needed(transactional_id)
        try:
            transaction = self.transactions.init(transactional_id, timeout_ms, claim, new_producer_id, self._now_ms())
        except HeadraceError:
            await self._settled(transactional_id)
            raise
        await self._change(transaction)
        return transaction

    async def _new_producer_id_if_needed(self, transactional_id: str) -> int | None:
        """Return a new producer id if one is needed. The state is valid from its return until the next await."""
        new_producer_id = None
        while new_producer_id is None and self.transactions.needs_producer_id(transactional_id):
            new_producer_id = await self._new_producer_id()
        self.ensure_open(transactional_id)
        return new_producer_id

    async def _change(self, transaction: TransactionMetadata) -> None:
        """Store a changed transaction, and wait until it is committed."""
        if transaction is not self.transactions.find(transaction.transactional_id):
            self._store(transaction)
        await self._settled(transaction.transactional_id)

    async def _settled(self, *transactional_ids: str) -> None:
        """Wait until the stored state of the ids is committed; raise if this broker is no longer their coordinator."""
        end_offsets = {self._end_offsets[one]: one for one in transactional_ids if one in self._end_offsets}
        if end_offsets:
            end_offset, transactional_id = max(end_offsets.items())
            await self._log.committed(transactional_id, end_offset)
            self.ensure_open(transactional_id)

    def _store(self, *transactions: TransactionMetadata, bundle: JointCommit | None = None) -> int:
        """Append and apply in one step, and start to complete decided transactions."""
        for transaction in transactions:
            self.ensure_open(transaction.transactional_id)
        end_offset = self._log.store(transactions, bundle)
        if bundle is not None:
            self._end_offsets[joint_commit_owner_id(bundle.name)] = end_offset
            self.joint_commits.apply(bundle)
        for transaction in transactions:
            self._end_offsets[transaction.transactional_id] = end_offset
            self.transactions.apply(transaction)
            if transaction.is_ending:
                self._start_ending(transaction)
        return end_offset

    def _confirm(self, name: str) -> None:
        """Confirm a response without a change, which may be outdated because another broker may be the leader. It is
        valid if a later append is committed."""
        self._end_offsets[joint_commit_owner_id(name)] = self._log.confirm(name, self.joint_commits.find(name))

    def _start_ending(self, transaction: TransactionMetadata) -> None:
        transactional_id = transaction.transactional_id
        assert transactional_id not in self._ending
        self._joining.pop(transactional_id, None)
        self._ending[transactional_id] = asyncio.Event()
        task = self._start_task(self._end(transaction))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, transaction: TransactionMetadata) -> None:
        """Perform the second and third step of an end, with retries. While the leadership is in doubt it continues; the
        end of the leadership cancels it, and the next leader takes over."""
        transactional_id = transaction.transactional_id
        # Before the decision is committed no marker may be written: after a crash the decision could be lost, and the
        # producer could decide otherwise.
        for pause in retry_pauses():
            try:
                await self._settled(transactional_id)
                break
            except HeadraceError as error:
                log.error(
                    "storing the decision of a transaction failed transactional_id=%s error=%s", transactional_id, error
                )
            await asyncio.sleep(pause)
        await self._markers.write_all(transaction, self._epoch)
        for pause in retry_pauses():
            try:
                self._store(self.transactions.ended(transactional_id, self._now_ms()))
                break
            except HeadraceError as error:
                log.error(
                    "storing the completion of a transaction failed transactional_id=%s error=%s",
                    transactional_id,
                    error,
                )
            await asyncio.sleep(pause)
        self._ending.pop(transactional_id).set()

    async def _wait_until_ended(self, *transactional_ids: str) -> None:
        """Wait until ending transactions are complete, with a timeout, since a partition may be out of service."""
        await switch_to_task()
        try:
            async with asyncio.timeout(_ENDING_SECONDS):
                for transactional_id in transactional_ids:
                    over = self._ending.get(transactional_id)
                    if over is not None:
                        await over.wait()
        except TimeoutError:
            raise ConcurrentTransactions(
                f"not all partitions have received the markers of the transaction of {transactional_id}; retry"
            ) from None
        self.ensure_open()

    async def _joined(self, transactional_id: str, partitions: Collection[TopicPartition]) -> None:
        """Wait until the partitions are durably part of the transaction."""
        joining = self._joining.get(transactional_id)
        if joining is None:
            return
        end_offset = max((joining[name] for name in partitions if name in joining), default=None)
        if end_offset is None:
            return
        await self._log.committed(transactional_id, end_offset)
        self.ensure_open(transactional_id)
        for name in partitions:
            if joining.get(name, end_offset + 1) <= end_offset:
                del joining[name]
