"""Read the state of a queue after healing: its backlog and its dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.chaos.cluster_reads import read_all
from tests.chaos.processes import wait_drained
from tests.chaos.queue_client import DELIVERIES_MAX
from tests.chaos.queue_history import DeadCopy, QueueHistory, queue_history_of
from tests.chaos.transcript import Transcript

from headrace import AsyncClient
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.queues.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Queue:
    bootstrap: str
    topic: str
    subscription: str

    def subscribe(self) -> None:
        async def create() -> None:
            async with AsyncClient(self.bootstrap, create_topics=False) as client:
                configs = {"share.delivery.count.limit": str(DELIVERIES_MAX), "headrace.retry.backoff.ms": "0"}
                await client.create_subscription(self.topic, self.subscription, configs=configs)

        asyncio.run(create())

    def wait_settled(self, transcripts: Mapping[str, Transcript], supervise: Callable[[], None]) -> None:
        """Wait until no message is delayed, all acknowledged messages were delivered, and all are settled. Check twice,
        because a released message is in the topic a moment later."""
        left = {"not looked yet": 1}

        def all_settled() -> bool:
            supervise()
            was_settled = not any(left.values())
            left.clear()
            left.update(asyncio.run(self._left(transcripts.values())))
            return was_settled and not any(left.values())

        goal = f"the queue {self.topic} is empty"
        wait_drained(all_settled, goal, lambda: -sum(left.values()), lambda: f"messages left: {left}")

    def history(self, transcripts: Mapping[str, Transcript]) -> QueueHistory:
        """Return the history of the queue."""
        values = {
            f"{self.topic}:{partition}:{offset}": value.decode()
            for partition, records in read_all(self.bootstrap, self.topic).items()
            for offset, value in records
        }
        entries = {name: transcript.entries for name, transcript in transcripts.items()}
        return queue_history_of(entries, values, asyncio.run(self._dead()))

    async def _left(self, transcripts: Iterable[Transcript]) -> dict[str, int]:
        entries = [entry for one in transcripts for entry in one.entries]
        delivered = {entry[2] for entry in entries if entry[0] == "lease"}
        cancelling = {entry[2] for entry in entries if entry[0] == "cancel"}
        published = {entry[2] for entry in entries if entry[0] == "published"}
        async with AsyncClient(self.bootstrap, create_topics=False) as client:
            waiting = await Schedule(client.cluster, self.topic).count()
            backlogs = await SubscriptionAdmin(client.cluster).describe(self.subscription, [self.topic])
            dead = {(letter.record.value or b"").decode() for letter in await client.dead_letters(self.topic)}
        return {
            "waiting": waiting,
            "never delivered": len(published - delivered - cancelling - dead),
            "unsettled": sum(one.backlog for one in backlogs),
        }

    async def _dead(self) -> list[DeadCopy]:
        async with AsyncClient(self.bootstrap, create_topics=False) as client:
            letters = await client.dead_letters(self.topic)
        copies = [(letter.record.value or b"", letter.death) for letter in letters]
        return [
            DeadCopy(value.decode(), f"{death.topic}:{death.partition}:{death.offset}", death.attempts, death.at_ms)
            if death is not None
            else DeadCopy(value.decode(), "nowhere", 0, 0)
            for value, death in copies
        ]
