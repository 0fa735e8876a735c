"""The queue `jobs`: a publisher, two workers and a straggler.

    jobs            written by the publisher, also through `__delayed.jobs`; leased and settled by the others
    jobs.dlq        poison and stubborn messages

tests/chaos/queue_client.py has the clients, tests/chaos/queue_checks.py the rules.
"""

from __future__ import annotations

from functools import partial

from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.names import JOBS
from tests.chaos.processes import Processes
from tests.chaos.queue_checks import check_queue, check_queue_clients
from tests.chaos.queue_client import SUBSCRIPTION
from tests.chaos.queue_history import QueueHistory
from tests.chaos.queue_state import Queue
from tests.chaos.transcript import Transcript
from tests.integration.process import PATIENCE_SECONDS, wait_until

from headrace.model.names import acks_topic, dead_letter_topic

START_SECONDS = 5 * PATIENCE_SECONDS
"""All processes of the workload start at the same time, on a machine that may be busy."""
PARTITIONS = 3
PUBLISHER, STRAGGLER = "publisher", "straggler"
WORKERS = ("worker-1", "worker-2")
LOGS = (JOBS, dead_letter_topic(JOBS))
ACKS = acks_topic(JOBS)
"""All logs except `__delayed.jobs`, whose replicas are trimmed at different times."""


class QueueWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self._queue = Queue(cluster.bootstrap, JOBS, SUBSCRIPTION)
        self.transcripts: dict[str, Transcript] = {}
        self._history: QueueHistory | None = None

    def start(self) -> None:
        """Return when there is a dead letter: the topic gets as many replicas as brokers are up at its creation."""
        self._cluster.create_topic(JOBS, PARTITIONS)
        self._queue.subscribe()
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
        has_died = partial(self._cluster.has_topic, dead_letter_topic(JOBS))
        wait_until(has_died, "something has died", START_SECONDS)

    def supervise(self) -> None:
        self._processes.read_on(self.transcripts)

    def stop_writers(self) -> None:
        self._processes.stop((PUBLISHER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        self._queue.wait_settled(self.transcripts, self.supervise)

    def stop_readers(self) -> None:
        self._processes.stop((*WORKERS, STRAGGLER), PATIENCE_SECONDS)

    def check(self) -> list[str]:
        return check_queue_clients(self.transcripts, PUBLISHER) + check_queue(self._whole_history())

    def counts(self) -> dict[str, int]:
        return self._whole_history().counts("queue")

    def _whole_history(self) -> QueueHistory:
        """Read the history once, when all clients have ended."""
        if self._history is None:
            self.supervise()
            self._history = self._queue.history(self.transcripts)
            self._history.wrong_clocks = self._cluster.wrong_clocks
        return self._history
