"""Clients that only a cluster needs, and cheaper variants of the clients of a single broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tests.simulation.clients import IMPATIENT, PARTITIONS, PATIENT, TOPIC, Client, Writer, record_tuples

from headrace.client.admin.cluster_admin import ClusterAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError

T = TypeVar("T")

COPIES = "copies"
REPLICAS = 3

HIGH_WATERMARK = "high watermark"
LOG_START = "log start"
COMMITTED = ConsumerSettings(read_committed=True)


class SlowWriter(Writer):
    """Writes fewer records: seeds must be cheap, and most bugs need few records."""

    async def think(self, seconds: float) -> None:
        await super().think(3 * seconds)


class CommittedReader(Client):
    """Reads committed records of the copies."""

    async def work(self) -> None:
        async with Consumer(self.cluster, [COPIES], settings=COMMITTED) as consumer:
            while not self.is_done:
                records = await consumer.poll(self.random.randint(1, 50), timeout_seconds=0.5)
                self.history.record_poll(self.name, record_tuples(records))
                await self.think(0.2)


class CopiesAuditor(Client):
    """Reads all the copies after the run."""

    async def work(self) -> None:
        targets = [TopicPartition(COPIES, partition) for partition in range(PARTITIONS)]
        ends = await find_offsets(self.cluster, dict.fromkeys(targets, END))
        self.history.final = {partition: [] for partition in range(PARTITIONS)}
        async with Consumer(self.cluster, partitions=dict.fromkeys(targets, 0), settings=COMMITTED) as consumer:
            # The position does not advance over records that are not returned, so the end is an empty poll.
            while any(at.offset for at in ends.values()):
                records = await consumer.poll(timeout_seconds=2.0)
                for record in records:
                    assert record.value is not None
                    self.history.final[record.partition].append((record.offset, record.value))
                if not records:
                    return


class OffsetLister(Client):
    """Requests log start offsets and high watermarks from time to time."""

    settings = IMPATIENT

    async def work(self) -> None:
        while not self.is_done:
            with suppress(HeadraceError):
                await self._request_offset(HIGH_WATERMARK, END)
                await self._request_offset(LOG_START, START)
            await self.think(0.7)

    async def _request_offset(self, what: str, where: int) -> None:
        partition = self.random.randrange(PARTITIONS)
        mark = self.history.begin_mark(self.name, what, partition)
        target = TopicPartition(TOPIC, partition)
        found = await find_offsets(self.cluster, {target: where})
        self.history.end_mark(mark, found[target].offset)


class Operator(Client):
    """Creates and deletes topics, reassigns partitions, elects preferred leaders, drains brokers and undoes it."""

    settings = IMPATIENT
    brokers: list[int]

    async def work(self) -> None:
        self.scratch = 0
        self.exists: dict[int, bool | None] = {}
        self.drained: set[int] = set()
        self.topics = TopicAdmin(self.cluster)
        self.admin = ClusterAdmin(self.cluster)
        await self.think(1.0)
        while not self.is_done:
            with suppress(HeadraceError):
                await self._step()
            await self.think(1.0)
        await self._finish()

    async def _step(self) -> None:
        target = TopicPartition(self.random.choice((TOPIC, COPIES)), self.random.randrange(PARTITIONS))
        match self.random.randrange(6):
            case 0 | 1:
                await self._create_or_delete_topic()
            case 2 | 3:
                await self.admin.move({target: self.random.sample(self.brokers, REPLICAS)})
            case 4:
                await self.admin.prefer([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])
            case _:
                await self._drain_or_return()

    async def _create_or_delete_topic(self) -> None:
        """Use another name after an unconfirmed request, which may still take effect at any time."""
        name, exists = f"scratch{self.scratch}", self.exists.get(self.scratch, False)
        self.exists[self.scratch] = None
        try:
            if exists:
                await self.topics.delete(name)
            else:
                await self.topics.create(NewTopic(name, self.random.randint(1, 2), REPLICAS))
        except HeadraceError:
            self.scratch += 1
            raise
        self.exists[self.scratch] = not exists

    async def _drain_or_return(self) -> None:
        if self.drained:
            await self.admin.drain(node_id := self.drained.pop(), is_drained=False)
            self.drained.discard(node_id)
        else:
            self.drained.add(node_id := self.random.choice(self.brokers))
            await self.admin.drain(node_id)

    async def _finish(self) -> None:
        """Undo the drains, and wait until every broker lists the topics as they were confirmed."""
        for node_id in self.brokers:
            await self._retry(partial(self.admin.drain, node_id, is_drained=False))
        while await self._contradicting_topics():  # a broker that was cut off may not know the latest changes yet
            self.cluster.invalidate_metadata()
            await self.think(0.3)

    async def _contradicting_topics(self) -> list[str]:
        """Return the topics whose existence contradicts the confirmed requests."""
        names = {view.name for view in await self._retry(self.topics.list)}
        confirmed = {f"scratch{number}": exists for number, exists in self.exists.items() if exists is not None}
        return [name for name, exists in confirmed.items() if exists != (name in names)]

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self.cluster.call_with_retries(call, deadline_seconds=PATIENT.deadline_seconds)
