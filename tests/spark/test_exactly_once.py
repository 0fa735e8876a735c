"""Records are copied exactly once although the driver is killed repeatedly, the broker once, and tasks fail randomly.

HEADRACE_SPARK_KILLS sets how often the driver is killed (default 2), HEADRACE_SEED when (default 1). A long run:

    HEADRACE_SPARK_KILLS=10 pytest tests/spark/test_exactly_once.py

A kill ends Python and the JVM at once. The workers keep running for a while; nothing that these zombies write may
become visible.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.integration.conftest import Figures, figures
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.records import create_topic, produce

from headrace.client.transactions.joint_commits import committed_sequence
from headrace.columns.offsets import bounds
from headrace.columns.sync_cluster import sync_cluster

__all__ = ["figures"]  # pytest finds the fixture here

KILLS = int(os.environ.get("HEADRACE_SPARK_KILLS", "2"))
SEED = int(os.environ.get("HEADRACE_SEED", "1"))
BATCHES = 4 * (KILLS + 1)
ROWS_PER_BATCH = 300
PARTITIONS = 4
RUN_SECONDS = 300.0


class Driver:
    """The driver's process, and its progress according to its checkpoint."""

    def __init__(self, arguments: list[str], checkpoint: Path, log: Path) -> None:
        self._checkpoint = checkpoint
        command = [sys.executable, "-m", "tests.spark.copying_driver", *arguments]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def planned(self) -> int:
        """Return the last planned batch; -1 if there is none."""
        return self._last("offsets")

    def done(self) -> int:
        """Return the last finished batch."""
        return self._last("commits")

    def bundle(self) -> str | None:
        path = self._checkpoint / "metadata"
        return f"spark-{msgspec.json.decode(path.read_bytes())['id']}" if path.exists() else None

    def kill(self) -> None:
        # The JVM commits and writes the checkpoint; without it, workers find their connections closed.
        processes = psutil.Process(self._process.pid).children(recursive=True)
        for child in processes:
            if child.name() == "java":
                child.kill()
        self._process.kill()
        self._process.wait()
        _, left = psutil.wait_procs(processes, timeout=30)
        assert left == [], "workers outlive their driver"

    def close(self) -> None:
        if not self.has_ended():
            self.kill()

    def _last(self, folder: str) -> int:
        try:
            return max((int(name) for name in os.listdir(self._checkpoint / folder) if name.isdigit()), default=-1)
        except FileNotFoundError:
            return -1


class Scene:
    """A broker, two topics, and consecutive drivers."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.log = folder / "driver.log"
        self.starts = 0
        self._checkpoint = folder / "checkpoint"

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        self.starts += 1
        arguments = [self.broker.address, "source", "target", str(self._checkpoint), str(ROWS_PER_BATCH)]
        with closing(Driver(arguments, self._checkpoint, self.log)) as driver:
            yield driver

    def committed(self, driver: Driver) -> int:
        bundle = driver.bundle()
        if bundle is None:
            return -1
        return sync_cluster(self.broker.address).call(lambda cluster: committed_sequence(cluster, bundle))

    def has_open_transactions(self) -> bool:
        ends = [bounds(self.broker.address, ["target"], read_committed=committed) for committed in (True, False)]
        return ends[0] != ends[1]

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


Moment = Callable[[Scene, Driver, int], bool]
MOMENTS: dict[str, Moment] = {
    "when a batch is planned": lambda _, driver, batch: driver.planned() >= batch,
    "while tasks write": lambda scene, driver, batch: driver.planned() >= batch and scene.has_open_transactions(),
    "when a batch is committed but not noted as done": lambda scene, driver, batch: (
        driver.planned() >= batch and scene.committed(driver) > driver.done()
    ),
    "when a batch is noted as done": lambda _, driver, batch: driver.done() >= batch,
}


def await_moment(scene: Scene, driver: Driver, moment: Moment, batch: int) -> None:
    """Return at the given moment, or when the driver has ended. Moments may be short, so this polls without pauses."""
    pause = threading.Event()
    for _ in range(int(RUN_SECONDS / 0.005)):
        if driver.has_ended() or moment(scene, driver, batch):
            return
        pause.wait(0.005)
    raise AssertionError(f"the moment did not come:\n{scene.log_tail()}")


def read_target(address: str, isolation: str) -> list[bytes]:
    """Read all values of the target with a plain consumer."""
    values: list[bytes] = []
    unfinished = set(range(PARTITIONS))
    settings = {
        "bootstrap.servers": address,
        "group.id": f"reads {isolation}",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition("target", partition, 0) for partition in range(PARTITIONS)])

        def is_read() -> bool:
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    values.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition() or 0)
            return not unfinished

        wait_until(is_read, "the target is read to its end")
    return values


@pytest.fixture
def scene(without_java: None, tmp_path: Path) -> Iterator[Scene]:
    broker = BrokerProcess(tmp_path / "broker").start()
    create_topic(broker.address, "source", PARTITIONS)
    create_topic(broker.address, "target", PARTITIONS)
    yield Scene(broker, tmp_path)
    broker.stop()


@pytest.mark.timeout(300 + 120 * KILLS)
def test_every_row_is_copied_exactly_once_despite_kills(scene: Scene, figures: Figures) -> None:
    chance = random.Random(SEED)
    values = [b"%d" % number for number in range(BATCHES * ROWS_PER_BATCH)]
    produce(scene.broker.address, "source", values)
    killed: Counter[str] = Counter()
    hurt_broker_in = chance.randrange(KILLS)
    while sum(killed.values()) < KILLS:
        with scene.driver() as driver:
            number = sum(killed.values())
            first = driver.done() + 1
            if number == hurt_broker_in:
                await_moment(scene, driver, MOMENTS["while tasks write"], first)
                scene.broker.restart()
            name = chance.choice(sorted(MOMENTS))
            await_moment(scene, driver, MOMENTS[name], first + chance.randrange(1, 4))
            assert not driver.has_ended(), f"status {driver.status}:\n{scene.log_tail()}"
            driver.kill()
            killed[name] += 1
    with scene.driver() as driver:
        wait_until(driver.has_ended, "the driver has copied the rest", RUN_SECONDS)
        assert driver.status == 0, scene.log_tail()

    copied = read_target(scene.broker.address, "read_committed")
    assert Counter(copied) == Counter(b"copy of %s" % value for value in values)
    everything = read_target(scene.broker.address, "read_uncommitted")
    assert not scene.has_open_transactions()
    assert len(everything) > len(copied), "tasks failed and were killed, so there is something that must not be seen"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items()))
    aborted = len(everything) - len(copied)
    figures.add(f"seed {SEED}: killed {kinds}; {len(copied)} rows copied once, {aborted} aborted ones unseen")
