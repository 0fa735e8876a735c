"""Drivers of a streaming query whose batches several tasks write and one joint commit commits, as Spark's do.

- Each task writes a few records to a few partitions as a member of the joint commit, and leaves its transaction open.
  The driver commits all of them with the number of the batch as the sequence.
- Tasks fail halfway and are retried under the same or another name. Stragglers keep writing when no driver waits for
  them.
- A driver dies at any moment. The next one repeats the batch that is not noted as done. A replaced driver may not know
  that it was replaced.
- Any request may be repeated much later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
from tests.simulation.clients import PARTITIONS, Client

from headrace.client.cluster import ClientSettings
from headrace.client.errors import CommitInDoubt, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.client.produce.pending_batches import ProducerIdentity
from headrace.client.transactions.joint_commits import (
    JointCommitMember,
    MemberTransaction,
    abort_joint_commit,
    commit_jointly,
    committed_sequence,
)
from headrace.model.errors import DuplicateSequence, HeadraceError
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

JOINT_COMMIT_NAME = "query"
RESULTS = "results"
TRANSACTION_SECONDS = 6.0


class Batch(msgspec.Struct):
    """One attempt at a batch, as its driver knows it. Every record is unique and names the attempt.

    `outcome` is None unless the driver got a response; `is_refused`: the response was that nothing was committed.
    """

    sequence: int
    token: int
    records: dict[bytes, int] = {}  # the partition of each record
    is_asked: bool = False
    is_refused: bool = False
    outcome: bool | None = None


class Query(msgspec.Struct):
    """The state that all drivers of a query share: the last batch done, and the responses for the final check."""

    done: int = -1
    confirmed: int = -1  # the last sequence that a response called committed
    batches: list[Batch] = []
    late: list[asyncio.Task[None]] = []  # tasks whose result no driver waits for


class Driver(Client):
    """`catches_up`: it causes no more faults. It calls `on_commit` before every commit request."""

    settings = ClientSettings(request_timeout_seconds=3.0, dial_timeout_seconds=2.0, deadline_seconds=4.0)
    query: Query
    on_commit: Callable[[], None]
    uses_v2 = False
    catches_up = False

    async def work(self) -> None:
        while not self.is_done:
            with suppress(HeadraceError, TimeoutError):
                life = 60.0 if self.catches_up else self.random.choice((1.0, 5.0, 30.0))
                async with asyncio.timeout(self.random.uniform(0.0, 2 * life)):
                    await self._live()
            await self.think(0.2)

    def _happens(self, chance: float) -> bool:
        return not self.catches_up and self.random.random() < chance

    async def _live(self) -> None:
        """Process batches until the driver dies."""
        sequence = self.query.done + 1
        if self.random.random() < 0.5:
            confirmed = self.query.confirmed
            last = await committed_sequence(self.cluster, JOINT_COMMIT_NAME)
            assert last >= confirmed, f"sequence {confirmed} was committed, but {last} is the last"
            sequence = last + 1
        while not self.is_done:
            if await self._try(sequence):
                if self._happens(0.1):
                    return  # dies before the batch is noted as done
                self.query.done = max(self.query.done, sequence)
                sequence += 1
            await self.think(0.05)

    async def _try(self, sequence: int) -> bool:
        """Return whether the batch is done."""
        batch = Batch(sequence, len(self.query.batches))
        self.query.batches.append(batch)
        async with asyncio.TaskGroup() as group:
            numbers = range(self.random.choice((0, 1, 2, 3, 4, 4)))
            tasks = [group.create_task(self._task(batch, number)) for number in numbers]
        members = [member for task in tasks if (member := task.result())]
        if len(members) < len(tasks) or self._happens(0.05):
            return False
        try:
            outcome = await self._commit(batch, members)
        except CommitInDoubt:
            return False
        except HeadraceError:
            batch.is_refused = True
            if self.random.random() < 0.5:
                await abort_joint_commit(self.cluster, JOINT_COMMIT_NAME, members)
            return False
        batch.outcome = outcome
        if outcome:
            self.query.confirmed = max(self.query.confirmed, sequence)
        if self._happens(0.1):
            # Spark does this after a failed commit; it must not matter.
            await abort_joint_commit(self.cluster, JOINT_COMMIT_NAME, members)
        for member in members:
            if self._happens(0.1):
                self._later(partial(self._straggle, member))
        return True

    async def _commit(self, batch: Batch, members: list[JointCommitMember]) -> bool:
        batch.is_asked = True
        if self._happens(0.1):
            self._later(partial(self._commit_again, batch.sequence, [*members]))
        while True:
            self.on_commit()
            try:
                return await commit_jointly(self.cluster, JOINT_COMMIT_NAME, batch.sequence, members)
            except CommitInDoubt:
                if self.random.random() < 0.3:
                    raise
                self.random.shuffle(members)

    async def _task(self, batch: Batch, number: int) -> JointCommitMember | None:
        """Return the response of the task; None if it failed for good."""
        for attempt in count():
            name = f"{number}.{attempt}" if attempt and self.random.random() < 0.5 else f"{number}"
            transaction = MemberTransaction(self.cluster, JOINT_COMMIT_NAME, name, TRANSACTION_SECONDS)
            values = [
                f"{batch.sequence}:{batch.token}:{number}:{attempt}:{index}".encode()
                for index in range(self.random.choice((0, 1, 2, 4)))
            ]
            records = {value: self.random.randrange(PARTITIONS) for value in values}
            try:
                member = await transaction.begin()
                if await self._write(transaction, member, records):
                    batch.records |= records
                    return member
            except HeadraceError:
                break
            if self.random.random() < 0.5:
                self._later(partial(self._straggle, member))
        return None

    async def _write(
        self, transaction: MemberTransaction, member: JointCommitMember, records: dict[bytes, int]
    ) -> bool:
        """Return whether all records were written; otherwise the task failed halfway."""
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        for value, partition in records.items():
            if self._happens(0.05):
                return False
            if not self.uses_v2:
                await transaction.enlist([TopicPartition(RESULTS, partition)])
            await self._produce(member, partition, value, sequences[partition])
            sequences[partition] += 1
        return not self._happens(0.05)

    async def _produce(self, member: JointCommitMember, partition: int, value: bytes, sequence: int) -> None:
        batch = build_batch(
            [BatchRecord(value=value, timestamp_ms=self.cluster.clock.now_ms())],
            producer_id=member.producer_id,
            producer_epoch=member.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )

        async def attempt() -> None:
            data = PartitionProduceData(index=partition, records=memoryview(bytearray(batch)))
            topics = [TopicProduceData(name=RESULTS, partition_data=[data])]
            request = ProduceRequest(
                transactional_id=member.transactional_id, acks=-1, timeout_ms=3000, topic_data=topics
            )
            leader = (await self.cluster.partition(RESULTS, partition)).leader
            response = await self.cluster.call(request, node_id=leader, version_max=12 if self.uses_v2 else 11)
            code = response.responses[0].partition_responses[0].error_code
            if code != DuplicateSequence.code:
                raise_for_code(code)

        await self.cluster.call_with_retries(attempt)

    def _later(self, work: Callable[[], Awaitable[None]]) -> None:
        async def wait() -> None:
            await self.think(0.5)
            with suppress(HeadraceError):
                await work()

        self.query.late.append(asyncio.create_task(wait()))

    async def _straggle(self, member: JointCommitMember) -> None:
        """Keep writing as an earlier producer of this member."""
        name = member.transactional_id.rpartition("#")[2]
        transaction = MemberTransaction(self.cluster, JOINT_COMMIT_NAME, name, TRANSACTION_SECONDS)
        transaction.identity = ProducerIdentity(member.producer_id, member.epoch)
        for number in range(2):
            partition = self.random.randrange(PARTITIONS)
            await transaction.enlist([TopicPartition(RESULTS, partition)])
            await self._produce(member, partition, f"straggler:{number}".encode(), 0)

    async def _commit_again(self, sequence: int, members: Sequence[JointCommitMember]) -> None:
        await commit_jointly(self.cluster, JOINT_COMMIT_NAME, sequence, members)
