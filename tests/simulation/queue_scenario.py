"""The cluster simulation with queue workers, which lease the messages of the topic, settle some and abandon others.

- A confirmed ack is final: no delivery of the message has a later receipt, whichever broker leads.
- A message leaves the backlog only by an ack: when the backlog is empty, a worker has acked or tried to ack each
  message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from tests.simulation.clients import PARTITIONS, TOPIC, Client
from tests.simulation.cluster_scenario import POLL_SECONDS, ClusterScenario

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.errors import raise_for_code
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt
from headrace.client.queues.settling import ACK
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.wire.messages.queues import SettleItem, SettlePartition, SettleRequest, SettleResponse, SettleTopic

NAME = "workers"
CONFIGS = {
    "share.delivery.count.limit": "1000",
    "share.record.lock.duration.ms": "1500",
    "headrace.retry.backoff.ms": "0",
}


class Worker(Client):
    """`acked`: the ack was confirmed; `tried`: it may have taken effect."""

    catches_up = False
    topic, subscription = TOPIC, NAME
    configs: Mapping[str, str] = CONFIGS
    counts: tuple[int, ...] = (1, 5, 30)
    pause_seconds = 0.1

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.delivered: list[LeaseReceipt] = []
        self.acked: list[LeaseReceipt] = []
        self.tried: list[LeaseReceipt] = []

    async def work(self) -> None:
        admin = SubscriptionAdmin(self.cluster)
        await admin.create(self.topic, self.subscription, Position(START), self.configs)
        async with Subscription(self.cluster, self.topic, self.subscription) as subscription:
            while not self.is_done:
                with suppress(HeadraceError):
                    messages = await subscription.lease(self.random.choice(self.counts), wait_seconds=0.5)
                    if self.catches_up:
                        await self._settle_all(subscription, messages)
                    else:
                        for message in messages:
                            self.receive(message)
                            await self.settle(subscription, message)
                await self.think(0.01 if self.catches_up else self.pause_seconds)

    async def _settle_all(self, subscription: Subscription, messages: Sequence[LeasedMessage]) -> None:
        """Settle all concurrently. One by one, with slow disks, each took 0.19 s, and a backlog of 270 took longer than
        the whole recovery may take (seed 1153)."""
        for message in messages:
            self.receive(message)
        async with asyncio.TaskGroup() as under_way:
            for message in messages:
                under_way.create_task(self._settle_one(subscription, message))

    async def _settle_one(self, subscription: Subscription, message: LeasedMessage) -> None:
        with suppress(HeadraceError):  # it is delivered again
            await self.settle(subscription, message)

    def receive(self, message: LeasedMessage) -> None:
        self.delivered.append(message.receipt)

    async def settle(self, subscription: Subscription, message: LeasedMessage) -> None:
        fate = 1.0 if self.catches_up else self.random.random()
        if fate < 0.1:
            return  # its lease expires
        if fate < 0.2:
            await subscription.nack([message], delay_seconds=self.random.choice((0.0, 0.3)))
            return
        if fate < 0.3:
            await subscription.extend([message], lease_seconds=3.0)
            await self.think(1.0)
        await self.ack(message.receipt)

    async def ack(self, receipt: LeaseReceipt) -> None:
        self.tried.append(receipt)
        if await self.settle_once(receipt, ACK):
            self.acked.append(receipt)

    async def settle_once(self, receipt: LeaseReceipt, how: int) -> bool:
        """Return whether the ack was accepted. A repeated request could not show which request settled the message."""
        place = receipt.id
        item = SettleItem(first=place.offset, last=place.offset, attempt=receipt.attempt, how=how)
        requested = SettleTopic(place.topic, [SettlePartition(place.partition, receipt.epoch, [item])])
        try:
            leader = (await self.cluster.partition(place.topic, place.partition)).leader
            request = SettleRequest(self.subscription, receipt.member, [requested])
            response: SettleResponse = await self.cluster.call(request, node_id=leader)
            (partition,) = response.topics[0].partitions
            raise_for_code(partition.error_code, partition.error_message)
        except HeadraceError:
            self.cluster.invalidate_metadata()
            return False
        return not partition.refused


class QueueScenario(ClusterScenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.workers = self.draw_clients(Worker, "worker", (1, 2, 3))
        self.clients += self.workers

    def run(self) -> list[Anomaly]:
        return [*super().run(), *self._acked_and_redelivered(), *self._never_acked()]

    async def _recover(self) -> None:
        await super()._recover()
        for worker in self.workers:
            worker.catches_up = True
        admin = SubscriptionAdmin(self.watcher.cluster)
        while True:
            try:
                left = sum(one.backlog for one in await admin.describe(NAME, [TOPIC]))
                self.missing = f"{left} messages are not settled"
                if not left:
                    return
            except HeadraceError as error:
                self.missing = f"reading the backlog failed: {error}"
            await asyncio.sleep(POLL_SECONDS)

    def _acked_and_redelivered(self) -> Iterator[Anomaly]:
        acked = {receipt.id: receipt for worker in self.workers for receipt in worker.acked}
        for worker in self.workers:
            for later in worker.delivered:
                ended = acked.get(later.id)
                if ended is not None and (later.epoch, later.attempt) > (ended.epoch, ended.attempt):
                    yield Anomaly("acked message came back", later.id.partition, f"{ended}, then {later}")

    def _never_acked(self) -> Iterator[Anomaly]:
        tried = {receipt.id for worker in self.workers for receipt in worker.tried}
        settled = {(place.partition, place.offset) for place in tried}
        for partition in range(PARTITIONS):
            for offset, value in self.orders.final[partition]:
                if (partition, offset) not in settled:
                    yield Anomaly("never settled", partition, f"{value[:20]!r} at {offset}")
