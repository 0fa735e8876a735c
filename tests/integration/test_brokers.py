"""`headrace serve --brokers N`: a cluster on one host whose brokers are killed, paused and orphaned without data
loss."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from tests.integration.conftest import Figures
from tests.integration.ensemble import ports_in_a_row
from tests.integration.history import History
from tests.integration.load import Load, read_everything
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.raw import connect_in_a_tight_loop, encode_request

BROKERS = 3
METADATA, DESCRIBE_QUORUM = 3, 55
PARTITIONS = 6
HEADRACE = str(Path(sys.executable).with_name("headrace"))


class BrokersProcess:
    """The parent process of the brokers. Ports stay the same after restarts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.options = options
        self.count = BROKERS
        ports = ports_in_a_row(2 * BROKERS)
        self.kafka, self.http = ports[:BROKERS], ports[BROKERS:]
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.kafka)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it does not run"
        return self._process

    def start(self) -> BrokersProcess:
        command = [HEADRACE, "serve", "--brokers", str(self.count), "--data", str(self.data), *self.options]
        command += ["--kafka", f"127.0.0.1:{self.kafka[0]}", "--http", f"127.0.0.1:{self.http[0]}"]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("ab") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        wait_until(self._says_ready, "all brokers are ready")
        return self

    def broker(self, node_id: int) -> psutil.Process | None:
        """Return the process id of a broker, if it is running."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has ended meanwhile
                words = child.cmdline()
                if "--node-id" in words and words[words.index("--node-id") + 1] == str(node_id):
                    return child
        return None

    def brokers(self) -> list[psutil.Process]:
        found = [self.broker(node_id) for node_id in range(1, self.count + 1)]
        return [one for one in found if one is not None]

    def send(self, node_id: int, what: signal.Signals) -> None:
        broker = self.broker(node_id)
        assert broker is not None
        broker.send_signal(what)

    def out(self) -> str:
        return (self.folder / "out").read_text()

    def errors(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def end(self, what: signal.Signals) -> int:
        """Send a signal to the parent; return its exit code."""
        self.process.send_signal(what)
        exit_code = self.process.wait(PATIENCE_SECONDS)
        self._process = None
        return exit_code

    def stop(self) -> None:
        """Kill all processes, in any state."""
        if self._process is not None and self._process.poll() is None:
            brokers = self.brokers()
            self.end(signal.SIGKILL)
            for broker in brokers:
                broker.kill()

    def run(self, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of `headrace` against the brokers."""
        done = self._run(*arguments)
        assert done.returncode == expect, done.stderr
        return done

    def succeeds(self, *arguments: str) -> bool:
        """Run a command that may fail until all brokers know of an earlier change."""
        return self._run(*arguments).returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [HEADRACE, *arguments, "--server", self.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    def restart_with(self, count: int) -> None:
        """Stop all brokers, delete the folders of the last ones, and start with so many."""
        assert self.end(signal.SIGTERM) == 0
        for node_id in range(count + 1, self.count + 1):
            shutil.rmtree(self.data / f"broker-{node_id}")
        self.count = count
        self.start()

    def _says_ready(self) -> bool:
        assert self.process.poll() is None, f"it ended with {self.process.poll()}:\n{self.errors()}"
        return self.out().startswith("ready ")


def test_a_client_that_connects_during_startup_gets_complete_metadata(tmp_path: Path) -> None:
    def first_metadata(address: str) -> Any:
        with connect_in_a_tight_loop(address) as connection:
            return connection.call(METADATA, 12, topics=None)

    encode_request(METADATA, 12, topics=None)  # loads the schema, which takes longer than a broker's start
    brokers = BrokersProcess(tmp_path)
    try:
        with ThreadPoolExecutor(BROKERS) as pool:
            connecting = [pool.submit(first_metadata, address) for address in brokers.address.split(",")]
            brokers.start()
            for node_id, response in enumerate(connecting, 1):
                nodes = [broker.node_id for broker in response.result().brokers]
                assert node_id in nodes
                assert response.result().controller_id in nodes
    finally:
        brokers.stop()


@pytest.fixture
def start_brokers(tmp_path: Path) -> Iterator[Callable[..., BrokersProcess]]:
    started: list[BrokersProcess] = []

    def start(*options: str) -> BrokersProcess:
        started.append(BrokersProcess(tmp_path, *options))
        return started[-1].start()

    yield start
    for process in started:
        process.stop()


def create_replicated(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    new = NewTopic(topic, PARTITIONS, BROKERS, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)


def partitions(address: str, topic: str) -> list[PartitionMetadata]:
    """Return the view of one broker; a new client connects only to it."""
    admin = AdminClient({"bootstrap.servers": address})
    return list(admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions.values())


def leaders(address: str) -> set[int]:
    return {partition.leader for partition in partitions(address, "numbers")}


def all_in_sync(address: str) -> bool:
    return all(len(partition.isrs) == BROKERS for partition in partitions(address, "numbers"))


def is_readable(address: str) -> bool:
    """Whether the leaders know all records that were committed before their term."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "looks"})
    try:
        for partition in range(PARTITIONS):
            consumer.get_watermark_offsets(TopicPartition("numbers", partition), PATIENCE_SECONDS)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def test_a_broker_killed_under_load_loses_nothing_and_is_restarted(
    start_brokers: Callable[..., BrokersProcess], figures: Figures
) -> None:
    cluster = start_brokers()
    assert cluster.out().startswith(f"ready kafka={cluster.address} http=127.0.0.1:{cluster.http[0]},")
    assert " nodes=1,2,3 version=" in cluster.out()
    create_replicated(cluster.address, "numbers")
    spared = f"127.0.0.1:{cluster.kafka[2]}"
    assert leaders(spared) == {1, 2, 3}
    history = History()
    with Load(cluster.address, "numbers", PARTITIONS, history) as load:
        load.wait_acknowledged(1000)
        cluster.send(1, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: 1 not in leaders(spared), "others lead what the killed one led")
        figures.add(f"{time.monotonic() - began:.2f} s from kill -9 to new leaders in the metadata")
        load.wait_acknowledged(1000)
        wait_until(lambda: all_in_sync(spared), "all are in sync again")
        figures.add(f"{time.monotonic() - began:.2f} s from kill -9 until it is in sync again")
        load.wait_acknowledged(1000)
    read_everything(cluster.address, "numbers", PARTITIONS, history)
    assert history.anomalies() == []
    assert not any(history.refused.values()), "with retries every record is acknowledged in the end"
    assert "warning: broker 1 exited, status=-9; restarting it in" in cluster.errors()
    assert "broker 1 is up again" in cluster.errors()

    brokers = cluster.brokers()
    assert len(brokers) == BROKERS
    assert cluster.end(signal.SIGTERM) == 0
    assert not any(broker.is_running() for broker in brokers)
    assert "Traceback" not in cluster.errors()

    cluster.start()
    wait_until(lambda: is_readable(cluster.address), "the new leaders have caught up")
    again = History(sent=history.sent, acknowledged=history.acknowledged)
    read_everything(cluster.address, "numbers", PARTITIONS, again)
    assert again.anomalies() == []


def replicas_by_topic(cluster: BrokersProcess) -> dict[str, set[int]]:
    """Return the numbers of replicas that the partitions of each topic have."""
    found: dict[str, set[int]] = {}
    for line in cluster.run("cluster", "partitions").stdout.splitlines():
        row = json.loads(line)
        found.setdefault(row["topic"], set()).add(len(row["replicas"]))
    return found


def publish_in_transaction(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "auditor"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"checked")
    producer.commit_transaction(PATIENCE_SECONDS)


def test_three_brokers_become_two_and_one_and_two_again_without_loss(
    start_brokers: Callable[..., BrokersProcess],
) -> None:
    cluster = start_brokers()
    create_replicated(cluster.address, "numbers")
    cluster.run("topic", "create", "jobs", "-p", "1")
    cluster.run("subscription", "create", "jobs", "workers")
    cluster.run("schedule", "add", "jobs", "later", "--delay", "1h")
    cluster.run("produce", "jobs", "first")
    cluster.run("consume", "jobs", "-g", "readers", "-e")
    publish_in_transaction(cluster.address, "audit")
    topics = {"numbers", "jobs", "audit", "__acks.jobs", "__delayed.jobs", "__consumer_offsets", "__transaction_state"}
    assert replicas_by_topic(cluster) == {topic: {3} for topic in topics}
    refused = cluster.run("cluster", "drain", "3", "--wait", expect=1).stderr
    assert "`headrace cluster drain 3 --reduce-replicas`" in refused

    history = History()
    with Load(cluster.address, "numbers", PARTITIONS, history) as load:
        load.wait_acknowledged(1000)
        cluster.run("cluster", "drain", "3", "--wait", "--reduce-replicas")
        assert replicas_by_topic(cluster) == {topic: {2} for topic in topics}
        load.wait_acknowledged(1000)
    cluster.restart_with(2)
    wait_until(lambda: cluster.succeeds("cluster", "health"), "both brokers are in sync")

    refused = cluster.run("cluster", "drain", "2", "--wait", "--reduce-replicas", expect=1).stderr
    assert "`headrace topic alter numbers --set min.insync.replicas=1`" in refused
    cluster.run("topic", "alter", "numbers", "--set", "min.insync.replicas=1")
    drain = ("cluster", "drain", "2", "--wait", "--reduce-replicas")
    wait_until(lambda: cluster.succeeds(*drain), "broker 2 holds nothing")
    cluster.restart_with(1)
    wait_until(lambda: cluster.succeeds("cluster", "health"), "the last broker leads everything")
    assert replicas_by_topic(cluster) == {topic: {1} for topic in topics}

    cluster.restart_with(2)
    cluster.run("cluster", "drain", "2", "--undo")
    grow = ("topic", "alter", "numbers", "--replicas", "2", "--wait")
    wait_until(lambda: cluster.succeeds(*grow), "both brokers hold the topic")
    assert replicas_by_topic(cluster)["numbers"] == {2}
    publish_in_transaction(cluster.address, "audit")
    assert len(cluster.run("consume", "audit", "-e").stdout.splitlines()) == 2
    read_everything(cluster.address, "numbers", PARTITIONS, history)
    assert history.anomalies() == []
    assert not any(history.refused.values())
    (message,) = cluster.run("subscription", "pull", "jobs", "workers", "--ack").stdout.splitlines()
    assert json.loads(message)["value"] == "first"
    assert len(cluster.run("schedule", "list", "jobs").stdout.splitlines()) == 1
    (position,) = cluster.run("group", "lag", "readers").stdout.splitlines()
    assert json.loads(position)["lag"] == 0
    assert cluster.end(signal.SIGTERM) == 0
    assert "Traceback" not in cluster.errors()


def test_a_paused_broker_is_replaced_after_the_session_timeout_and_rejoins(
    start_brokers: Callable[..., BrokersProcess],
) -> None:
    cluster = start_brokers("--session-timeout", "1")
    create_replicated(cluster.address, "numbers")
    spared = f"127.0.0.1:{cluster.kafka[2]}"
    cluster.send(1, signal.SIGSTOP)
    wait_until(lambda: 1 not in leaders(spared), "others lead what the paused one led")
    cluster.send(1, signal.SIGCONT)
    wait_until(lambda: all_in_sync(spared), "all are in sync again")
    assert "broker 1 ended" not in cluster.errors()
    assert cluster.end(signal.SIGTERM) == 0


def test_brokers_stop_cleanly_when_their_parent_is_killed(
    start_brokers: Callable[..., BrokersProcess],
) -> None:
    cluster = start_brokers()
    orphans = cluster.brokers()
    assert len(orphans) == BROKERS
    cluster.end(signal.SIGKILL)
    cluster.start()
    gone, alive = psutil.wait_procs(orphans, PATIENCE_SECONDS)
    assert len(gone) == BROKERS
    assert alive == []
    assert all((cluster.data / f"broker-{number}").is_dir() for number in (1, 2, 3))


def test_a_broker_that_fails_three_times_at_its_start_stops_all(
    start_brokers: Callable[..., BrokersProcess],
) -> None:
    cluster = start_brokers()
    others = [broker for broker in cluster.brokers() if broker != cluster.broker(2)]
    killed: set[int] = set()

    def ended() -> bool:
        if cluster.process.poll() is not None:
            return True
        broker = cluster.broker(2)
        if broker is not None and broker.pid not in killed:
            killed.add(broker.pid)
            broker.kill()
        return False

    wait_until(ended, "it gives up")
    assert cluster.process.wait() == 1
    assert len(killed) == 3
    assert "error: broker 2 exited 3 times in a row, status=-9; stopping" in cluster.errors()
    assert not any(broker.is_running() for broker in others)


def test_each_form_of_start_rejects_the_data_folder_of_the_other(tmp_path: Path) -> None:
    several, one = tmp_path / "several", tmp_path / "one"
    (several / "broker-1" / "logs").mkdir(parents=True)
    (one / "logs").mkdir(parents=True)
    for options, why in (
        (["--data", str(several)], b"start them with --brokers 1"),
        (["--data", str(one), "--brokers", "2"], b"omit --brokers"),
    ):
        output = subprocess.run(
            [HEADRACE, "serve", *options], capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert output.returncode == 1
        assert why in output.stderr
        assert output.stdout == b""
    assert os.listdir(several) == ["broker-1"]
    assert os.listdir(one) == ["logs"]


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.terminate], ids=["kill", "terminate"])
def test_a_broker_accepts_connections_only_with_complete_metadata(
    tmp_path: Path, end: Callable[[BrokerProcess], object]
) -> None:
    """I36. Metadata names any broker as the controller while none is known, but the quorum then has no epoch."""
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    # Loads the schemas, which takes longer than a broker's start.
    encode_request(METADATA, 12, topics=None)
    encode_request(DESCRIBE_QUORUM, 1, topics=quorum)
    registry = f"sqlite:{tmp_path / 'registry.db'}"
    brokers = {
        node_id: BrokerProcess(tmp_path / str(node_id), options=("--node-id", str(node_id), "--registry", registry))
        for node_id in (1, 2)
    }

    try:
        for node_id in (1, 2, 1):
            broker = brokers[node_id]
            if broker.running:
                end(broker)
            broker.launch()
            with connect_in_a_tight_loop(broker.address) as connection:
                (known,) = connection.call(DESCRIBE_QUORUM, 1, topics=quorum).topics[0].partitions
                metadata = connection.call(METADATA, 12, topics=None)
            nodes = {one.node_id for one in metadata.brokers}
            assert known.leader_epoch > 0
            assert node_id in nodes
            assert {known.leader_id, metadata.controller_id} <= nodes
            broker.wait_ready()
    finally:
        for broker in brokers.values():
            broker.stop()
