"""Clients of a queue: workers that also reject, transactional writers, and one that adds partitions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tests.simulation.clients import IMPATIENT, PATIENT, Client
from tests.simulation.features.feature import TopicWriter
from tests.simulation.queue_scenario import Worker

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt
from headrace.client.queues.settling import REJECT
from headrace.client.queues.subscription import Subscription
from headrace.client.transactions.transactional_producer import TransactionalProducer, TransactionSettings
from headrace.model.errors import HeadraceError
from headrace.testkit.clock import START_MS
from headrace.testkit.history import SendOperation

POISON = b"poison"
TRANSACTION_SECONDS = 5.0
LEASE_SECONDS = 1.5
# How soon clients learn of added partitions. The default of five minutes is too long for a scenario that must end
# within one. Writers learn first, so that the workers find records in the partition.
WRITER_METADATA_SECONDS, WORKER_METADATA_SECONDS = 1.0, 10.0


class Delivered(NamedTuple):
    """A message that a worker received. `granted_seconds`: the virtual time of the lease. `settles_before`: how many
    acks and rejects had been sent when the worker received it."""

    receipt: LeaseReceipt
    key: bytes | None
    value: bytes
    headers: dict[str, bytes | None]
    granted_seconds: float
    settles_before: int

    @property
    def place(self) -> tuple[int, int]:
        return self.receipt.id.partition, self.receipt.id.offset


class QueueLog:
    """The operations of all workers of a subscription, in order."""

    def __init__(self) -> None:
        self.delivered: list[Delivered] = []
        self.settles: list[tuple[int, int]] = []
        """Positions of the messages for which an ack or reject was sent."""
        self.rejected: list[tuple[int, int]] = []
        """Positions of the messages whose reject was confirmed."""


class QueueWorker(Worker):
    """Rejects poison messages, or nacks them until they become dead letters."""

    settings = replace(PATIENT, metadata_age_seconds_max=WORKER_METADATA_SECONDS)
    log: QueueLog

    def receive(self, message: LeasedMessage) -> None:
        super().receive(message)
        granted_seconds = (message.leased_until_ms - START_MS) / 1000 - LEASE_SECONDS
        one = Delivered(
            message.receipt,
            message.key,
            message.value or b"",
            dict(message.headers),
            granted_seconds,
            len(self.log.settles),
        )
        self.log.delivered.append(one)

    async def settle(self, subscription: Subscription, message: LeasedMessage) -> None:
        if not (message.value or b"").startswith(POISON):
            await super().settle(subscription, message)
        elif self.random.random() < 0.7:
            await self._reject(message.receipt)
        else:
            await subscription.nack([message], delay_seconds=0.1)

    async def ack(self, receipt: LeaseReceipt) -> None:
        self.log.settles.append((receipt.id.partition, receipt.id.offset))
        await super().ack(receipt)

    async def _reject(self, receipt: LeaseReceipt) -> None:
        place = receipt.id.partition, receipt.id.offset
        self.log.settles.append(place)
        if await self.settle_once(receipt, REJECT):
            self.log.rejected.append(place)


class JobWriter(TopicWriter):
    settings = replace(PATIENT, metadata_age_seconds_max=WRITER_METADATA_SECONDS)


class TransactionWriter(JobWriter):
    """Writes in transactions; it aborts some and abandons others, which the coordinator aborts later."""

    settings = replace(JobWriter.settings, deadline_seconds=4.0)

    async def work(self) -> None:
        life = 0
        while not self.is_done:
            life += 1
            # An abandoned transaction stays open, so the next one needs another id.
            producer = TransactionalProducer(
                self.cluster, f"{self.name}-{life}", TransactionSettings(timeout_seconds=TRANSACTION_SECONDS)
            )
            with suppress(HeadraceError):
                while not self.is_done and await self._transaction(producer):
                    await self.think(self.pause_seconds)
            await producer._drop_producer()
            await self.think(self.pause_seconds)

    async def _transaction(self, producer: TransactionalProducer) -> bool:
        """Return whether another transaction may follow."""
        await producer.begin()
        sends: list[tuple[SendOperation, int]] = []
        for _ in range(self.random.choice(self.counts)):
            self.number += 1
            draft = self.draft(self, self.number)
            value, partition, key, headers, _ = draft
            send = self.begin(draft)
            delivery = await producer.submit(self.topic, value, partition=partition, key=key, headers=headers)
            sends.append((send, (await delivery).offset))
        fate = self.random.random()
        await self.think(0.3)
        if fate < 0.15:
            return False
        if fate < 0.3:
            await producer.abort()
            self.history.aborted.update(send.value for send, _ in sends)
            return True
        await producer.commit()
        for send, offset in sends:
            self.end(send, offset)
        return True


class Grower(Client):
    """Adds partitions; `partitions` is the confirmed number."""

    settings = IMPATIENT
    topic: str
    partitions: int
    limit: int

    async def work(self) -> None:
        admin = TopicAdmin(self.cluster)
        while not self.is_done and self.partitions < self.limit:
            await self.think(2.0)
            with suppress(HeadraceError):
                await admin.add_partitions(self.topic, self.partitions + 1)
            with suppress(HeadraceError):
                self.partitions = len((await admin.describe(self.topic)).partitions)
