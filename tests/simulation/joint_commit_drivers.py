"""Drivers of a query whose batches are written by several tasks and committed as one, as Spark's are.

A batch has a number. Each task writes a few records to a few partitions as a member of the query's bundle, and leaves
its transaction open; the driver commits them all with the number of the batch. Tasks fail in the midst of it and are
tried again, under the same name or another; stragglers write on when nobody waits for them any more. A driver dies at
any moment, and the next one does the batch again that was not noted as done; a driver that was replaced may not know.
Whatever was asked may be asked again, much later.
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
    """One attempt at a batch, as its driver knows it. Every record is unique, and names the attempt.

    `outcome` is None while, or if, the driver was never told one; `is_refused`: told that nothing was committed.
    """

    sequence: int
    token: int
    records: dict[bytes, int] = {}  # to its partition
    is_asked: bool = False
    is_refused: bool = False
    outcome: bool | None = None


class Query(msgspec.Struct):
    """What all drivers of a query share: where they note which batch is done, and what the judge is told."""

    done: int = -1
    told: int = -1  # the last sequence that anybody was told to be committed
    batches: list[Batch] = []
    late: list[asyncio.Task[None]] = []  # what is done when nobody counts on it any more


class Driver(Client):
    """`catches_up`: it makes no more faults of its own. `on_commit` is told whenever it is about to ask."""

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
        """Batches until the driver dies."""
        sequence = self.query.done + 1
        if self.random.random() < 0.5:
            told = self.query.told
            last = await committed_sequence(self.cluster, JOINT_COMMIT_NAME)
            assert last >= told, f"sequence {told} was committed, and now {last} is the last"
            sequence = last + 1
        while not self.is_done:
            if await self._try(sequence):
                if self._happens(0.1):
                    return  # before it is noted
                self.query.done = max(self.query.done, sequence)
                sequence += 1
            await self.think(0.05)

    async def _try(self, sequence: int) -> bool:
        """Whether the batch is done."""
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
            self.query.told = max(self.query.told, sequence)
        if self._happens(0.1):
            # As Spark does after a commit that failed: it must not matter.
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
        """What the driver hears from the task; None if it fails for good."""
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
        """Whether all was written; else it has failed in the midst of it."""
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
            answer = await self.cluster.call(request, node_id=leader, version_max=12 if self.uses_v2 else 11)
            code = answer.responses[0].partition_responses[0].error_code
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
        """Whoever was this member writes on."""
        name = member.transactional_id.rpartition("#")[2]
        transaction = MemberTransaction(self.cluster, JOINT_COMMIT_NAME, name, TRANSACTION_SECONDS)
        transaction.identity = ProducerIdentity(member.producer_id, member.epoch)
        for number in range(2):
            partition = self.random.randrange(PARTITIONS)
            await transaction.enlist([TopicPartition(RESULTS, partition)])
            await self._produce(member, partition, f"straggler:{number}".encode(), 0)

    async def _commit_again(self, sequence: int, members: Sequence[JointCommitMember]) -> None:
        await commit_jointly(self.cluster, JOINT_COMMIT_NAME, sequence, members)
