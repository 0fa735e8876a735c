"""Clients of simulated brokers. Each works until `is_done` is set, and records its operations in a history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import END, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Delivery, Producer, ProducerSettings
from headrace.model.errors import HeadraceError
from headrace.testkit.history import History, SendOperation
from headrace.testkit.world import SimHost

TOPIC = "orders"
PARTITIONS = 3
GROUP = "billing"

PATIENT = ClientSettings(request_timeout_seconds=3.0, dial_timeout_seconds=2.0, deadline_seconds=600.0)
# One attempt per call: a repeated attempt that takes effect late would belong to no recorded operation.
IMPATIENT = ClientSettings(request_timeout_seconds=3.0, dial_timeout_seconds=2.0, deadline_seconds=1e-6)


class Client:
    """Base class: a client has a host, a random stream and an end."""

    settings = PATIENT

    def __init__(self, host: SimHost, broker: str, history: History, seed: int) -> None:
        self.name = host.name
        self.history = history
        self.random = Random(f"{host.name} {seed}")
        self.is_done = False
        dialer = TcpDialer(host.network, host.name)
        self.cluster = Cluster(parse_addresses(broker), dialer, host.clock, host.entropy, self.settings)

    async def run(self) -> None:
        try:
            await self.work()
        finally:
            self.cluster.close()

    async def work(self) -> None:
        raise NotImplementedError

    async def think(self, seconds: float) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 2 * seconds))


class Writer(Client):
    """An idempotent producer with a few records in flight. Every value is unique."""

    async def work(self) -> None:
        settings = ProducerSettings(
            delivery_timeout_seconds=self.random.choice((5.0, 60.0)), topic_wait_seconds=PATIENT.deadline_seconds
        )
        number = 0
        async with Producer(self.cluster, settings) as producer:
            while not self.is_done:
                async with asyncio.TaskGroup() as under_way:
                    for _ in range(self.random.choice((1, 1, 2, 5))):
                        number += 1
                        value = f"{self.name}-{number}".encode() + b"." * self.random.choice((0, 0, 200, 1500))
                        send, delivery = await self._submit(producer, value)
                        under_way.create_task(self._settle(send, delivery))
                await self.think(0.1)

    async def _submit(self, producer: Producer, value: bytes) -> tuple[SendOperation, Delivery]:
        partition = self.random.randrange(PARTITIONS)
        send = self.history.begin_send(self.name, partition, value)
        return send, await producer.submit(TOPIC, value, partition=partition)

    async def _settle(self, send: SendOperation, delivery: Delivery) -> None:
        try:
            receipt = await delivery
        except HeadraceError:
            return  # the record may be in the log or not, now or later
        self.history.end_send(send, receipt.offset)


class Reader(Client):
    """Reads all records once, from the start."""

    async def work(self) -> None:
        async with Consumer(self.cluster, [TOPIC]) as consumer:
            while not self.is_done:
                records = await consumer.poll(self.random.randint(1, 50), timeout_seconds=0.5)
                self.history.record_poll(self.name, record_tuples(records))
                await self.think(0.1)


class Member(Client):
    """A group member that reads, commits, and sometimes leaves and rejoins."""

    settings = IMPATIENT
    rules = GroupRules(GROUP, session_timeout_seconds=6.0, heartbeat_seconds=1.5, poll_interval_max_seconds=20.0)

    async def work(self) -> None:
        while not self.is_done:
            settings = ConsumerSettings(commit_seconds=None)
            try:
                async with Consumer(self.cluster, [TOPIC], group=self.rules, settings=settings) as consumer:
                    await self._take_part(consumer, polls=self.random.choice((10, 100)))
            except HeadraceError:
                await self.think(0.2)

    async def _take_part(self, consumer: Consumer, polls: int) -> None:
        is_behind = False
        for _ in range(polls):
            if self.is_done:
                return
            try:
                records = await consumer.poll(self.random.randint(1, 50), timeout_seconds=0.5)
                self.history.record_poll(self.name, record_tuples(records), GROUP)
                is_behind = is_behind or bool(records)
                if is_behind and self.random.random() < 0.6:
                    await self._commit(consumer)
                    is_behind = False
            except HeadraceError:
                await self.think(0.2)
            await self.think(0.1)

    async def _commit(self, consumer: Consumer) -> None:
        offsets = {target: consumer.position(target) for target in sorted(consumer.assignment)}
        commits = [
            self.history.begin_commit(self.name, GROUP, target.partition, offset) for target, offset in offsets.items()
        ]
        await consumer.commit(offsets)
        for commit in commits:
            self.history.end_commit(commit)


class Watcher(Client):
    """Fetches the committed offsets of the group from time to time."""

    settings = IMPATIENT

    async def work(self) -> None:
        while not self.is_done:
            with suppress(HeadraceError):
                await self.fetch_committed()
            await self.think(0.5)

    async def fetch_committed(self) -> dict[int, int]:
        fetches = [self.history.begin_offset_fetch(self.name, GROUP, partition) for partition in range(PARTITIONS)]
        found = await committed(self.cluster, GROUP, [TopicPartition(TOPIC, fetch.partition) for fetch in fetches])
        offsets = {target.partition: commit.offset for target, commit in found.items()}
        for fetch in fetches:
            self.history.end_offset_fetch(fetch, offsets.get(fetch.partition, -1))
        return offsets


class Auditor(Client):
    """Reads the whole log after the run."""

    async def work(self) -> None:
        targets = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = await find_offsets(self.cluster, dict.fromkeys(targets, END))
        self.history.final = {partition: [] for partition in range(PARTITIONS)}
        async with Consumer(self.cluster, partitions=dict.fromkeys(targets, 0)) as consumer:
            while any(consumer.position(target) < ends[target].offset for target in targets):
                for record in await consumer.poll():
                    assert record.value is not None
                    self.history.final[record.partition].append((record.offset, record.value))


def record_tuples(records: Iterable[ConsumedRecord]) -> list[tuple[int, int, bytes]]:
    return [(record.partition, record.offset, record.value or b"") for record in records]
