"""Three brokers and three ZooKeeper servers on one host, started by documented commands: the leader is killed (I25,
I26), and a hundred partitions move to a fourth broker."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.cluster import view_of
from tests.chaos.namespaces import Host
from tests.chaos.nodes import BrokerNode, Node
from tests.integration.conftest import Figures
from tests.integration.history import History
from tests.integration.load import Load, read_everything
from tests.integration.process import PATIENCE_SECONDS, free_ports, wait_until

from headrace.model.errors import HeadraceError
from headrace.server.zookeeper import find_jars, find_java

HERE = Host("this host", "127.0.0.1")
SESSION_SECONDS = 4.0
PARTITIONS = 6
MANY_PARTITIONS = 100
TOPIC = "numbers"


@dataclass
class Ensemble(Node):
    """`headrace zookeeper --nodes 3`, whose servers listen on three consecutive ports."""

    port: int = 0

    def command(self) -> list[str]:
        headrace = str(Path(sys.executable).with_name("headrace"))
        listen = f"127.0.0.1:{self.port}"
        return [headrace, "zookeeper", "--data", str(self.folder / "data"), "--listen", listen, "--nodes", "3"]

    def is_ready(self) -> bool:
        return (self.folder / "out.txt").read_text().startswith("ready")


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    try:
        find_java(), find_jars()
    except HeadraceError as error:
        pytest.skip(error.message)
    node = Ensemble("zookeeper", HERE, tmp_path / "zookeeper", port=three_free_ports_in_a_row())
    node.launch()
    node.wait_ready()
    yield node
    node.terminate()


@pytest.fixture
def brokers(ensemble: Ensemble, tmp_path: Path) -> Iterator[list[BrokerNode]]:
    """Three running brokers; brokers that a test adds are stopped as well."""
    nodes = [launched(number, ensemble, tmp_path) for number in (1, 2, 3)]
    for node in nodes:
        node.wait_ready()
    yield nodes
    for node in nodes:
        node.kill()


def launched(number: int, ensemble: Ensemble, folder: Path) -> BrokerNode:
    registry = f"zookeeper://{','.join(f'127.0.0.1:{ensemble.port + at}' for at in range(3))}/headrace"
    node = BrokerNode(f"broker {number}", HERE, folder / f"broker-{number}", None, number=number, registry=registry)
    node.kafka_port, node.http_port = free_ports(2)
    node.session_seconds = SESSION_SECONDS
    node.launch()
    return node


def three_free_ports_in_a_row() -> int:
    """Return the first of several consecutive free ports, which the system does not allocate by itself."""
    for first in range(25000, 26000, 3):
        try:
            for port in range(first, first + 3):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no three ports are free")


def is_in_sync(brokers: list[BrokerNode]) -> bool:
    """Whether every broker reports that all replicas are in sync."""
    return all(view is not None and view.is_healthy for view in map(view_of, brokers))


@pytest.mark.timeout(240)
def test_a_killed_leader_loses_and_duplicates_nothing_and_is_restarted(
    brokers: list[BrokerNode], figures: Figures
) -> None:
    bootstrap = ",".join(broker.address for broker in brokers)
    topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    history = History()
    with Load(bootstrap, TOPIC, PARTITIONS, history) as load:
        load.wait_acknowledged(2000)
        view = view_of(brokers[0])
        assert view is not None
        leader = brokers[view.leaders[TOPIC, 0] - 1]
        leader.kill()
        killed = time.monotonic()
        last_sent = [max(history.sent[partition]) for partition in range(PARTITIONS)]

        def all_go_on() -> bool:
            """Whether every partition has acknowledged a record that was sent after the kill."""
            return all(max(history.acknowledged[at], default=-1) > last for at, last in enumerate(last_sent))

        wait_until(all_go_on, "every partition takes writes again")
        outage = time.monotonic() - killed
        leader.launch()
        wait_until(lambda: is_in_sync(brokers), "the broker that was killed is in sync again")
        returned = time.monotonic() - killed - outage
        load.wait_acknowledged(2000)
    read_everything(bootstrap, TOPIC, PARTITIONS, history)

    assert history.anomalies() == []
    assert not any(history.refused.values()), "with retries every record is acknowledged in the end"
    assert [broker.terminate() for broker in brokers] == [0, 0, 0]
    figures.add(
        f"session timeout {SESSION_SECONDS:g} s: every partition took writes again {outage:.1f} s after the kill, all "
        f"in sync {returned:.1f} s after the restart; {history.acknowledged_count()} records, each there once"
    )


@pytest.mark.timeout(240)
def test_a_hundred_partitions_move_to_a_new_broker_under_load_and_no_write_fails(
    brokers: list[BrokerNode], ensemble: Ensemble, tmp_path: Path, figures: Figures
) -> None:
    bootstrap = ",".join(broker.address for broker in brokers)
    topic = NewTopic(TOPIC, MANY_PARTITIONS, 3, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    history = History()
    with Load(bootstrap, TOPIC, MANY_PARTITIONS, history) as load:
        load.wait_acknowledged(2000)
        brokers.append(launched(4, ensemble, tmp_path))
        brokers[3].wait_ready()
        before, began = history.acknowledged_count(), time.monotonic()
        headrace = str(Path(sys.executable).with_name("headrace"))
        move = ["cluster", "reassign", "--topic", TOPIC, "--to", "2,3,4", "--wait", "--server", bootstrap]
        run = subprocess.run([headrace, *move], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        seconds, meanwhile = time.monotonic() - began, history.acknowledged_count() - before
        load.wait_acknowledged(2000)
    read_everything(bootstrap, TOPIC, MANY_PARTITIONS, history)

    view = view_of(brokers[1])
    assert view is not None
    assert view.behind == ()
    assert {view.leaders[TOPIC, partition] for partition in range(MANY_PARTITIONS)} <= {2, 3, 4}
    assert history.anomalies() == []
    assert not any(history.refused.values())
    figures.add(f"{MANY_PARTITIONS} partitions moved in {seconds:.1f} s, with {meanwhile} records written meanwhile")
