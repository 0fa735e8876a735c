"""The queue that is worked on while the cluster is hurt: a publisher, workers, a straggler, and what is left of it.

    jobs            written by the publisher, also through `__delayed.jobs`; leased and settled by the others
    jobs.dlq        what nobody could work on

See tests/chaos/queue_client.py for what each of them does, and tests/chaos/queue_judgement.py for what is demanded.
"""

from __future__ import annotations

import asyncio

from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.cluster import Cluster
from tests.chaos.processes import Processes, wait_drained
from tests.chaos.queue_client import DELIVERIES_MAX, JOBS, SUBSCRIPTION
from tests.chaos.queue_history import DeadCopy, QueueHistory, queue_history_of
from tests.chaos.transcript import Log, Transcript
from tests.integration.process import PATIENCE_SECONDS, wait_until

from headrace import AsyncClient
from headrace.client.schedule import Schedule
from headrace.client.subscription_admin import SubscriptionAdmin
from headrace.model.names import acks_topic, dead_letter_topic

PUBLISHER, STRAGGLER = "publisher", "straggler"
WORKERS = ("worker-1", "worker-2")
LOGS = (JOBS, dead_letter_topic(JOBS), acks_topic(JOBS))
"""All but `__delayed.jobs`, whose replicas are trimmed at different moments."""


class QueueWorkload:
    def __init__(self, cluster: Cluster, processes: Processes, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self.transcripts: dict[str, Transcript] = {}

    def start(self) -> None:
        """Return when something has died: the dead letters have as many replicas as brokers are up then."""
        asyncio.run(self._subscribe())
        first, second = self._cluster.client_hosts
        for host, role, name in (
            (first, "publisher", PUBLISHER),
            (first, "worker", WORKERS[0]),
            (second, "worker", WORKERS[1]),
            (second, "straggler", STRAGGLER),
        ):
            arguments = [role, name, self._cluster.bootstrap, str(self._rate)]
            path = self._processes.launch(host, name, ["tests.chaos.queue_client", *arguments])
            self.transcripts[name] = Transcript(path)
        wait_until(lambda: self._cluster.has_topic(dead_letter_topic(JOBS)), "something has died")

    def supervise(self) -> None:
        self._processes.read_on(self.transcripts)

    def stop_publisher(self) -> None:
        self._processes.stop((PUBLISHER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def stop_members(self) -> None:
        self._processes.stop((*WORKERS, STRAGGLER), PATIENCE_SECONDS)

    def wait_settled(self) -> None:
        """Until nothing waits for its time, all that was acknowledged was delivered, and all is settled. Looked at
        twice, because what has just been announced waits no more, and is in the topic a moment later."""
        left = {"not looked yet": 1}

        def all_settled() -> bool:
            self.supervise()
            was_settled = not any(left.values())
            left.clear()
            left.update(asyncio.run(self._left()))
            return was_settled and not any(left.values())

        wait_drained(all_settled, "the queue is empty", lambda: f"there are {left}")

    def history(self, log: dict[int, Log]) -> QueueHistory:
        """All that happened; `log` is the topic as it was read to its end."""
        self.supervise()
        values = {
            f"{JOBS}:{partition}:{offset}": value.decode()
            for partition, records in log.items()
            for offset, value in records
        }
        entries = {name: transcript.entries for name, transcript in self.transcripts.items()}
        return queue_history_of(entries, values, asyncio.run(self._dead()))

    async def _subscribe(self) -> None:
        async with AsyncClient(self._cluster.bootstrap, create_topics=False) as client:
            configs = {"share.delivery.count.limit": str(DELIVERIES_MAX)}
            await client.create_subscription(JOBS, SUBSCRIPTION, configs=configs)

    async def _left(self) -> dict[str, int]:
        delivered = {entry[2] for one in self.transcripts.values() for entry in one.entries if entry[0] == "lease"}
        cancelling = {entry[2] for entry in self.transcripts[PUBLISHER].entries if entry[0] == "cancel"}
        published = {entry[2] for entry in self.transcripts[PUBLISHER].entries if entry[0] == "published"}
        async with AsyncClient(self._cluster.bootstrap, create_topics=False) as client:
            waiting = await Schedule(client.cluster, JOBS).count()
            backlogs = await SubscriptionAdmin(client.cluster).describe(SUBSCRIPTION, [JOBS])
        return {
            "waiting": waiting,
            "never delivered": len(published - delivered - cancelling),
            "unsettled": sum(one.backlog for one in backlogs),
        }

    async def _dead(self) -> list[DeadCopy]:
        async with AsyncClient(self._cluster.bootstrap, create_topics=False) as client:
            letters = await client.dead_letters(JOBS)
        copies = [(letter.record.value or b"", letter.death) for letter in letters]
        return [
            DeadCopy(value.decode(), f"{death.topic}:{death.partition}:{death.offset}", death.attempts, death.at_ms)
            if death is not None
            else DeadCopy(value.decode(), "nowhere", 0, 0)
            for value, death in copies
        ]
