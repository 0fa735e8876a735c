"""A Kafka share group: a producer and two share consumers.

    shared          written by the publisher; acquired and acknowledged by the members
    shared.dlq      rejected records, and those released up to the delivery limit

tests/chaos/share_client.py has the clients, tests/chaos/share_checks.py the rules.
"""

from __future__ import annotations

from collections import Counter

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.names import SHARED
from tests.chaos.processes import Processes
from tests.chaos.queue_checks import check_queue_clients
from tests.chaos.queue_client import DELIVERIES_MAX
from tests.chaos.queue_history import QueueHistory
from tests.chaos.queue_state import Queue
from tests.chaos.share_checks import check_share_group
from tests.chaos.share_client import CRASHED, GROUP, LOCK_MS
from tests.chaos.transcript import Transcript
from tests.compat.time_limit import LIBRARY_HUNG
from tests.integration.process import PATIENCE_SECONDS

PARTITIONS = 3
PUBLISHER = "share-publisher"
MEMBERS = ("share-member-1", "share-member-2")
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": str(DELIVERIES_MAX),
    "share.record.lock.duration.ms": str(LOCK_MS),
    "share.session.timeout.ms": "6000",
    "share.heartbeat.interval.ms": "1000",
}


class ShareWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self._queue = Queue(cluster.bootstrap, SHARED, GROUP)
        self.transcripts: dict[str, Transcript] = {}
        self._crashes = Counter[str]()
        self._history: QueueHistory | None = None

    def start(self) -> None:
        self._cluster.create_topic(SHARED, PARTITIONS)
        self._configure_group()
        first, second = self._cluster.client_hosts
        for host, role, name in (
            (first, "publisher", PUBLISHER),
            (first, "member", MEMBERS[0]),
            (second, "member", MEMBERS[1]),
        ):
            arguments = [role, name, self._cluster.bootstrap, str(PARTITIONS), str(self._rate)]
            path = self._processes.launch(host, name, ["tests.chaos.share_client", *arguments])
            self.transcripts[name] = Transcript(path)

    def supervise(self) -> None:
        for name in MEMBERS:
            self._processes.restart_hung(name)
            if self._processes.exit_code(name) == CRASHED:
                self._crashes[name] += 1
                self._processes.restart(name)
        self._processes.read_on(self.transcripts, restarted=(LIBRARY_HUNG, CRASHED))

    def stop_writers(self) -> None:
        self._processes.stop((PUBLISHER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        self._queue.wait_settled(self.transcripts, self.supervise)

    def stop_readers(self) -> None:
        self._processes.stop(MEMBERS, PATIENCE_SECONDS)

    def check(self) -> list[str]:
        return check_queue_clients(self.transcripts, PUBLISHER) + check_share_group(self._whole_history())

    def counts(self) -> dict[str, int]:
        counts = {"share group: members that crashed with records": self._crashes.total()}
        return counts | self._whole_history().counts("share group")

    def _configure_group(self) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in CONFIGS.items()
        ]
        resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)

    def _whole_history(self) -> QueueHistory:
        """Read the history once, when all clients have ended."""
        if self._history is None:
            for transcript in self.transcripts.values():
                transcript.read_on()
            self._history = self._queue.history(self.transcripts)
        return self._history
