"""The administrator, and a topic that is written and read while the administrator changes it.

    changing    is extended, trimmed by DeleteRecords and reassigned; one writer, and one member of a group
    scratch-N   created, written to, changed and deleted

tests/chaos/admin_client.py has the operations, tests/chaos/admin_checks.py the rules.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from tests.chaos.admin_checks import (
    AdminOperation,
    ClusterState,
    TopicState,
    admin_operations,
    check_administration,
    deleted_offsets,
)
from tests.chaos.checks import check_clients, check_topic, first_few
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.cluster_reads import committed_offsets, log_bounds, read_all
from tests.chaos.names import CHANGING, CHANGING_REPLICAS, SCRATCH
from tests.chaos.nodes import BrokerNode
from tests.chaos.processes import Processes, wait_drained
from tests.chaos.transcript import Transcript
from tests.compat.time_limit import LIBRARY_HUNG
from tests.integration.process import PATIENCE_SECONDS

from headrace.client.admin.topic_admin import ResourceType
from headrace.client.cluster import ClientSettings, connect
from headrace.client.errors import raise_for_code
from headrace.model.errors import HeadraceError
from headrace.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.metadata import DescribeClusterRequest, MetadataRequest
from headrace.wire.messages.replicas import ListPartitionReassignmentsRequest

ADMINISTRATOR = "administrator"
WRITER, MEMBER, GROUP = "changing-writer", "changing-member", "changing members"
START_PARTITIONS = 3
SETTINGS = ClientSettings(request_timeout_seconds=10.0)


class AdminWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, seed: int, rate: float) -> None:
        self._cluster, self._processes, self._seed, self._rate = cluster, processes, seed, rate
        self.transcripts: dict[str, Transcript] = {}
        self._violations: list[str] = []

    def start(self) -> None:
        self._cluster.create_topic(CHANGING, START_PARTITIONS, CHANGING_REPLICAS)
        first, second = self._cluster.client_hosts
        bootstrap = self._cluster.bootstrap
        numbers = ",".join(str(broker.number) for broker in self._cluster.brokers)
        client, shared = "tests.chaos.client", [bootstrap, CHANGING, str(START_PARTITIONS), str(self._rate)]
        for host, name, module in (
            (first, WRITER, [client, "growing-writer", WRITER, *shared, ""]),
            (second, MEMBER, [client, "member", MEMBER, *shared, GROUP]),
            (second, ADMINISTRATOR, ["tests.chaos.admin_client", str(self._seed), bootstrap, numbers]),
        ):
            self.transcripts[name] = Transcript(self._processes.launch(host, name, module))

    def supervise(self) -> None:
        self._processes.restart_hung(MEMBER)
        self._processes.read_on(self.transcripts, restarted=(LIBRARY_HUNG,))

    def stop_writers(self) -> None:
        """Stop the administrator too: what is read and compared afterwards must not change any more."""
        self._processes.stop((WRITER, ADMINISTRATOR), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        """Wait until every broker describes all confirmed operations, and the group has read all records."""
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        while (found := self._check_state()) and time.monotonic() < deadline:
            time.sleep(1.0)
        self._violations += first_few(found, "administration")
        bounds = log_bounds(self._cluster.bootstrap, CHANGING)
        ends = {partition: end for partition, (start, end) in bounds.items() if end > start}
        committed: dict[int, int] = {}

        def all_committed() -> bool:
            self.supervise()
            committed.update(committed_offsets(self._cluster.bootstrap, GROUP, CHANGING))
            return ends.items() <= committed.items()

        goal = f"the group of {CHANGING} has committed {ends}"
        wait_drained(all_committed, goal, lambda: sum(committed.values()), lambda: f"it has committed {committed}")

    def stop_readers(self) -> None:
        self._processes.stop((MEMBER,), PATIENCE_SECONDS)

    def check(self) -> list[str]:
        self._processes.read_on(self.transcripts)
        final = read_all(self._cluster.bootstrap, CHANGING)
        clients = {name: self.transcripts[name] for name in (WRITER, MEMBER)}
        return [
            *self._violations,
            *check_topic(CHANGING, clients, {MEMBER: GROUP}, final, deleted_offsets(self._operations(), CHANGING)),
            *check_clients(self.transcripts, (WRITER,)),
        ]

    def counts(self) -> dict[str, int]:
        operations = self._operations()
        done = Counter(one.kind for one in operations if one.is_confirmed)
        counts = {f"administration: {kind} confirmed": count for kind, count in sorted(done.items())}
        in_doubt = sum(not one.is_confirmed for one in operations)
        acknowledged = sum(entry[0] == "ack" for entry in self.transcripts[WRITER].entries)
        return counts | {"administration: not confirmed": in_doubt, f"records acknowledged in {CHANGING}": acknowledged}

    def _operations(self) -> list[AdminOperation]:
        return admin_operations(self.transcripts[ADMINISTRATOR].entries)

    def _check_state(self) -> list[str]:
        self.supervise()
        operations = self._operations()
        found = list[str]()
        for broker in self._cluster.brokers:
            try:
                state = asyncio.run(read_cluster_state(broker, self._cluster.bootstrap))
            except HeadraceError as error:
                return [f"{broker.name} did not describe the cluster: {error!r}"]
            found += check_administration(operations, state)
        return found


async def read_cluster_state(broker: BrokerNode, bootstrap: str) -> ClusterState:
    """Return the cluster as this broker describes it."""
    async with connect(broker.address, SETTINGS) as cluster:
        metadata = await cluster.call(MetadataRequest(topics=None), node_id=broker.number)
        names = [topic.name for topic in metadata.topics if not topic.name.startswith("__")]
        resources = [DescribeConfigsResource(ResourceType.TOPIC, name, None) for name in names]
        described = await cluster.call(DescribeConfigsRequest(resources=resources), node_id=broker.number)
        for result in described.results:
            raise_for_code(result.error_code, result.error_message)
        moves = await cluster.call(ListPartitionReassignmentsRequest(topics=None), node_id=broker.number)
        raise_for_code(moves.error_code, moves.error_message)
        members = await cluster.call(DescribeClusterRequest(), node_id=broker.number)
    configs = {result.resource_name: {c.name: c.value for c in result.configs} for result in described.results}
    replicas = {
        topic.name: {partition.partition_index: tuple(partition.replica_nodes) for partition in topic.partitions}
        for topic in metadata.topics
        if topic.name in names
    }
    topics = {}
    for name in names:
        values = [
            value.decode()
            for log in (read_all(bootstrap, name) if name.startswith(SCRATCH) else {}).values()
            for _, value in log
        ]
        starts = {partition: start for partition, (start, _) in log_bounds(bootstrap, name).items()}
        topics[name] = TopicState(replicas[name], configs[name], starts, values)
    moving = tuple(
        f"{topic.name}[{partition.partition_index}]" for topic in moves.topics for partition in topic.partitions
    )
    drained = frozenset(broker.broker_id for broker in members.brokers if broker.is_draining)
    return ClusterState(broker.name, topics, drained, moving)
