"""Dead letters are redriven while brokers fail: their subscription gets each message again, no other one does.

Workers of one subscription reject every message that they get for the first time with some probability, and ack the
others. The workers of a second subscription ack everything. A redriver returns dead letters the whole time. The rules:

- In the end, every message is acked in both subscriptions, and no dead letter is left.
- A message is acked once: a repeated request to redrive it does not deliver it again after it was acked.
- The second subscription never gets a message again after its ack was confirmed.
- Nothing is published: the topic has what its writers wrote (`find_replicated_anomalies`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from tests.simulation.clients import PATIENT, TOPIC, Client
from tests.simulation.cluster_scenario import POLL_SECONDS
from tests.simulation.features.queue_rules import come_back
from tests.simulation.queue_scenario import QueueScenario, Worker

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.redrive import RedriveOptions
from headrace.client.queues.settling import REJECT
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.testkit.anomalies import Anomaly

AUDIT = "audit"
ALL = DeadLetterSelection()
OFTEN = RedriveOptions(max_redrives=1000)


class RejectingWorker(Worker):
    async def settle(self, subscription: Subscription, message: LeasedMessage) -> None:
        if not self.catches_up and self.random.random() < 0.3:
            await self.settle_once(message.receipt, REJECT)
        else:
            await super().settle(subscription, message)


class AuditWorker(Worker):
    subscription = AUDIT


class RedrivingClient(Client):
    """`refused`: what was wrong with dead letters that could not be redriven."""

    settings = replace(PATIENT, deadline_seconds=5.0)

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.refused: list[str] = []

    async def work(self) -> None:
        queue = DeadLetterQueue(self.cluster, TOPIC)
        while not self.is_done:
            await self.think(0.5)
            with suppress(HeadraceError):
                self.refused += [why for _, why in (await queue.redrive(ALL, OFTEN)).refused]


class RedriveScenario(QueueScenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for worker in self.workers:
            self.clients.remove(worker)
        self.workers = self.draw_clients(RejectingWorker, "rejecting-worker", (1, 2))
        self.auditors = self.draw_clients(AuditWorker, "audit-worker", (1,))
        self.redriver = self.create_client(RedrivingClient, "redriver")
        self.clients += [*self.workers, *self.auditors, self.redriver]

    def run(self) -> list[Anomaly]:
        return [*super().run(), *come_back(self.auditors), *self._acked_twice(), *self._refused()]

    async def _recover(self) -> None:
        for worker in self.auditors:
            worker.catches_up = True
        await super()._recover()
        while (left := await self._left()) != "":
            self.missing = left
            await asyncio.sleep(POLL_SECONDS)

    async def _left(self) -> str:
        """What the redriver and the workers still have to do."""
        cluster = self.watcher.cluster
        try:
            letters = await DeadLetterQueue(cluster, TOPIC).count()
        except UnknownTopicOrPartition:
            letters = 0
        except HeadraceError as error:
            return f"counting dead letters failed: {error}"
        try:
            backlogs = await SubscriptionAdmin(cluster).describe(topics=[TOPIC])
        except HeadraceError as error:
            return f"reading the backlog failed: {error}"
        left = sum(one.backlog for one in backlogs)
        return f"{letters} dead letters and {left} messages are left" if letters or left else ""

    def _acked_and_redelivered(self) -> Iterator[Anomaly]:
        """Attempts start anew with a redrive, so they do not order the deliveries; see `_acked_twice`."""
        return iter(())

    def _acked_twice(self) -> Iterator[Anomaly]:
        acked = Counter(receipt.id for worker in self.workers for receipt in worker.acked)
        for message_id, count in acked.items():
            if count > 1:
                yield Anomaly("acked twice", message_id.partition, f"{message_id}: {count} acks were confirmed")

    def _refused(self) -> Iterator[Anomaly]:
        for why in self.redriver.refused:
            if "retry" not in why:
                yield Anomaly("not redriven", 0, why)
