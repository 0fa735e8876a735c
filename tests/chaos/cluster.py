"""The brokers and their registry, and which broker has which role at present.

With ZooKeeper, each broker and each server has its own host. Without (`servers` is 0), all brokers are children of one
process on one host, and share a registry in SQLite.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import clocks, disks, namespaces
from tests.chaos.clocks import WrongClock
from tests.chaos.damage import Damage
from tests.chaos.disks import SmallDisk
from tests.chaos.names import REPLICAS
from tests.chaos.namespaces import Host, Namespaces
from tests.chaos.nodes import BrokerNode, Node, ZooKeeperNode
from tests.chaos.one_host import ChildBroker, HostNode
from tests.chaos.run_locks import acquire_run_lock, leftover_locks
from tests.integration.ensemble import ports_in_a_row
from tests.integration.process import PATIENCE_SECONDS, free_ports, wait_until
from tests.integration.raw import RawConnection

from headrace.broker.coordination.state_log import java_hash

MIN_IN_SYNC = 2
SETTINGS = {
    "log.segment.bytes": "1048576",
    "replica.lag.time.max.ms": "4000",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "auto.create.topics.enable": "false",
    "leader.imbalance.check.interval.seconds": "15",
    "min.insync.replicas": str(MIN_IN_SYNC),
}
METADATA, METADATA_VERSION = 3, 12
RESPONSE_SECONDS = 2.0
ONE_HOST = "h1"
ROLES = ("leader", "follower", "controller", "group coordinator", "transaction coordinator", "any")


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one broker describes it, which may be wrong during faults."""

    controller: int
    brokers: frozenset[int]
    topic_ids: dict[str, str]
    replicas: dict[tuple[str, int], tuple[int, ...]]
    leaders: dict[tuple[str, int], int]
    behind: tuple[str, ...]
    """descriptions of the partitions with a replica out of sync"""

    def is_healthy(self, brokers: int) -> bool:
        """Return whether this many brokers are up, all partitions have leaders, and all replicas are in sync."""
        return len(self.brokers) == brokers and not self.behind and self.brokers.issuperset(self.leaders.values())


class Cluster:
    """`close` ends every process and removes hosts and disks; the folder stays."""

    def __init__(
        self, folder: Path, brokers: int, servers: int, session_seconds: float, note: Callable[[str], None]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.session_seconds, self._note = folder, session_seconds, note
        self.damages: list[Damage] = []
        self.wrong_clocks: list[tuple[int, int]] = []
        """the periods in which the wall clock of a broker was wrong, in milliseconds of the correct clock"""
        self._stack = ExitStack()
        try:
            self._run_lock = acquire_run_lock(folder)
            self._stack.callback(self._run_lock.release)
            self.no_network_reason = namespaces.unavailable_reason()
            self.no_disks_reason = disks.unavailable_reason(folder)
            self.no_clocks_reason = clocks.unavailable_reason(folder)
            numbers = range(1, brokers + 1)
            broker_hosts = [f"b{number}" for number in numbers] if servers else [ONE_HOST]
            names = [*broker_hosts, *(f"z{number}" for number in range(1, servers + 1)), "c1", "c2"]
            self._stack.callback(namespaces.remove, self._run_lock.number)
            self.network = Namespaces(self._run_lock, names) if self.no_network_reason is None else None
            self._hosts = {name: Host(name, "127.0.0.1") for name in names}
            if self.network is not None:
                self._hosts = self.network.hosts
            self._clock_library = clocks.compile_library(folder) if self.no_clocks_reason is None else None
            self.client_clock = self._wrong_clock("clients")
            self.zookeepers = [self._zookeeper(number) for number in range(1, servers + 1)]
            for node in self.zookeepers:
                node.peers = self.zookeepers
            self.parent: HostNode | None = None
            self.brokers: Sequence[BrokerNode]
            if servers:
                registry = f"zookeeper://{','.join(node.address for node in self.zookeepers)}/chaos"
                self.brokers = [self._broker(number, registry) for number in numbers]
            else:
                self.parent = self._one_host(brokers)
                self.brokers = [_child(self.parent, number) for number in numbers]
        except BaseException:
            self._stack.close()
            raise
        self.client_hosts = [self._hosts["c1"], self._hosts["c2"]]
        self.bootstrap = ",".join(broker.address for broker in self.brokers)

    def wrong_clock_host(self, host: Host) -> Host:
        """Return the same host, with a clock that can be set wrong."""
        return host if self.client_clock is None else self.client_clock.on(host)

    @property
    def broker_processes(self) -> Sequence[BrokerNode]:
        """The processes that the harness starts and stops: the brokers, or the parent of all."""
        return self.brokers if self.parent is None else [self.parent]

    @property
    def nodes(self) -> Sequence[Node]:
        return [*self.broker_processes, *self.zookeepers]

    def start(self) -> None:
        for node in self.zookeepers:
            node.launch()
        for node in self.zookeepers:
            node.wait_ready()
        for broker in self.broker_processes:
            broker.launch()
        for broker in self.broker_processes:
            broker.wait_ready()

    def create_topic(
        self, name: str, partitions: int, replicas: int = REPLICAS, configs: Mapping[str, str] | None = None
    ) -> None:
        """Return when every broker knows the topic, because clients may ask any of them."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for created in admin.create_topics([NewTopic(name, partitions, replicas, config=dict(configs or {}))]).values():
            created.result(PATIENCE_SECONDS)

        def known_by_all() -> bool:
            views = [view_of(broker) for broker in self.brokers]
            return all(view is not None and view.leaders.get((name, partitions - 1), -1) >= 0 for view in views)

        wait_until(known_by_all, f"every broker knows topic {name!r}")

    def has_topic(self, name: str) -> bool:
        """Return whether any broker knows the topic."""
        return any(name in view.topic_ids for view in map(view_of, self.brokers) if view is not None)

    def log_folders(self, topics: Sequence[str]) -> dict[str, list[Path]]:
        """Return the folders of all replicas of these topics, by the name of the folder."""
        view = next(filter(None, map(view_of, self.brokers)))
        data = {broker.number: broker.data for broker in self.brokers}
        names = {place: f"{view.topic_ids[place[0]]}-{place[1]}" for place in view.leaders if place[0] in topics}
        return {
            name: [data[number] / "logs" / name for number in view.replicas[place]] for place, name in names.items()
        }

    def close(self) -> None:
        try:
            for node in self.nodes:
                node.kill()
        finally:
            self._stack.close()

    # --- roles ---

    def broker_for(self, role: str, topic: str, owners: dict[str, str], chance: random.Random) -> BrokerNode:
        """Return the broker in this role, or any broker if there is none at the moment. `owners`: the group and the
        transactional id of the coordinator roles."""
        views = map(view_of, chance.sample(self.brokers, len(self.brokers)) if role != "any" else ())
        view = next(filter(None, views), None)
        number = -1
        if view is not None:
            leads = Counter(leader for (name, _), leader in view.leaders.items() if name == topic and leader >= 0)
            most = leads.most_common(1)[0][0] if leads else -1
            if role == "leader":
                number = most
            elif role == "follower":
                number = chance.choice([broker.number for broker in self.brokers if broker.number != most])
            elif role == "controller":
                number = view.controller
            else:
                log = {"group coordinator": "__consumer_offsets", "transaction coordinator": "__transaction_state"}[
                    role
                ]
                partitions = max((index for name, index in view.leaders if name == log), default=-1) + 1
                if partitions:
                    number = view.leaders[log, java_hash(owners[role]) % partitions]
        return next((broker for broker in self.brokers if broker.number == number), chance.choice(self.brokers))

    def zookeeper_leader(self, chance: random.Random) -> ZooKeeperNode:
        return next((node for node in self.zookeepers if node.is_leader), chance.choice(self.zookeepers))

    # --- health ---

    def restart_ended(self, with_faults: Iterable[str] = ()) -> None:
        """Restart processes that ended by themselves, as a supervisor does, unless a fault keeps them down."""
        for node in self.nodes:
            code = node.reap()
            if code is not None:
                self._note(f"{node.name} ended by itself with exit code {code}")
            if node.process is None and node.is_meant_to_run and node.name not in with_faults:
                node.launch()

    def wait_in_sync(self, seconds: float = 2 * PATIENCE_SECONDS) -> None:
        """Wait until every broker is up, and describes every replica of every partition as in sync."""
        views: dict[str, View | None] = {}

        def all_in_sync() -> bool:
            self.restart_ended()
            views.update({broker.name: view_of(broker) for broker in self.brokers})
            return all(view is not None and view.is_healthy(len(self.brokers)) for view in views.values())

        try:
            wait_until(all_in_sync, "all replicas are in sync", seconds)
        except AssertionError as late:
            described = "\n".join(f"{name}: {view}" for name, view in views.items())
            raise AssertionError(f"{late}; the brokers describe:\n{described}") from None

    def _broker(self, number: int, registry: str) -> BrokerNode:
        name = f"b{number}"
        broker = BrokerNode(
            name,
            self._hosts[name],
            self.folder / name,
            number=number,
            registry=registry,
            session_seconds=self.session_seconds,
            settings=SETTINGS,
        )
        if self.network is None:
            broker.kafka_port, broker.http_port = free_ports(2)
        self._equip(broker)
        return broker

    def _one_host(self, count: int) -> HostNode:
        parent = HostNode(
            ONE_HOST,
            self._hosts[ONE_HOST],
            self.folder / ONE_HOST,
            session_seconds=self.session_seconds,
            settings=SETTINGS,
            count=count,
        )
        if self.network is None:
            ports = ports_in_a_row(2 * count)
            parent.kafka_port, parent.http_port = ports[0], ports[count]
        self._equip(parent)
        return parent

    def _equip(self, broker: BrokerNode) -> None:
        """Give the broker its own clock and disk, where this is possible."""
        broker.clock = self._wrong_clock(broker.name)
        if broker.clock is not None:
            broker.host = broker.clock.on(broker.host)
        if self.no_disks_reason is None:
            broker.disk = SmallDisk(self.folder / f"{broker.name}-disk")
            self._stack.callback(broker.disk.close)

    def _wrong_clock(self, name: str) -> WrongClock | None:
        return None if self._clock_library is None else WrongClock(self._clock_library, self.folder / f"{name}-clock")

    def _zookeeper(self, number: int) -> ZooKeeperNode:
        name = f"z{number}"
        node = ZooKeeperNode(name, self._hosts[name], self.folder / name, number=number)
        if self.network is None:
            node.client_port, node.quorum_port, node.election_port = free_ports(3)
        return node


def _child(parent: HostNode, number: int) -> ChildBroker:
    return ChildBroker(
        f"b{number}",
        parent.host,
        parent.folder,
        number=number,
        kafka_port=parent.kafka_port + number - 1,
        http_port=parent.http_port + number - 1,
        disk=parent.disk,
        clock=parent.clock,
        parent=parent,
    )


def view_of(broker: BrokerNode) -> View | None:
    """Return the cluster as the broker describes it; None if it does not respond."""
    try:
        with RawConnection(broker.address, RESPONSE_SECONDS) as raw:
            metadata = raw.call(METADATA, METADATA_VERSION, topics=None)
    except OSError:
        return None
    partitions = {
        (topic.name, partition.partition_index): partition
        for topic in metadata.topics
        for partition in topic.partitions
    }
    return View(
        metadata.controller_id,
        frozenset(each.node_id for each in metadata.brokers),
        {topic.name: topic.topic_id.hex for topic in metadata.topics},
        {place: tuple(partition.replica_nodes) for place, partition in partitions.items()},
        {place: partition.leader_id for place, partition in partitions.items()},
        tuple(
            f"{topic}-{index} has {list(found.isr_nodes)} of {list(found.replica_nodes)}, led by {found.leader_id}"
            for (topic, index), found in partitions.items()
            if len(found.isr_nodes) < len(found.replica_nodes)
        ),
    )


def clean() -> list[str]:
    """Remove what killed harnesses left; return a description of it."""
    cleared = []
    for left in leftover_locks():
        namespaces.remove(left.number)
        for place in disks.mounted_under(left.folder):
            disks.unmount(place)
        left.release()
        cleared.append(f"run {left.number} in {left.folder}")
    return cleared
