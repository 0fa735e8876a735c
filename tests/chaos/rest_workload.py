"""The queue `rest-jobs`, used over HTTP through two gateways, of which one at a time is killed or stopped.

    rest-jobs       a publisher and two workers, which alternate between the gateways
    rest-jobs.dlq   poison and stubborn messages

The gateways run on the hosts of the clients. tests/chaos/rest_client.py has the clients; the rules are those of every
queue (tests/chaos/queue_checks.py), and a gateway must end with exit code 0 on SIGTERM.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import requests
from tests.chaos.checks import find_logged_bugs
from tests.chaos.client import FLUSH_SECONDS
from tests.chaos.client_workload import ClientWorkload
from tests.chaos.cluster import Cluster
from tests.chaos.names import REST_JOBS
from tests.chaos.nodes import Node
from tests.chaos.processes import Processes
from tests.chaos.queue_checks import check_queue, check_queue_clients
from tests.chaos.queue_history import QueueHistory
from tests.chaos.queue_state import Queue
from tests.chaos.rest_client import SUBSCRIPTION
from tests.chaos.transcript import Transcript
from tests.integration.process import PATIENCE_SECONDS, free_ports

PUBLISHER = "rest-publisher"
WORKERS = ("rest-worker-1", "rest-worker-2")
PARTITIONS = 2
PORT = 8081
DEDUP_WINDOW_MS = 3_600_000
BETWEEN_FAULTS_SECONDS = (5.0, 15.0)
"""the time between two faults of gateways"""
DOWN_SECONDS = (0.0, 5.0)


@dataclass
class GatewayNode(Node):
    bootstrap: str = ""
    port: int = PORT

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    def command(self) -> list[str]:
        headrace = str(Path(sys.executable).with_name("headrace"))
        return [headrace, "gateway", "--bootstrap", self.bootstrap, "--http", self.address, "--insecure"]

    def is_ready(self) -> bool:
        try:
            return requests.get(f"http://{self.address}/livez", timeout=1.0).ok
        except requests.RequestException:
            return False


class RestWorkload(ClientWorkload):
    def __init__(self, cluster: Cluster, processes: Processes, seed: int, rate: float) -> None:
        self._cluster, self._processes, self._rate = cluster, processes, rate
        self._chance = random.Random(f"gateways {seed}")
        self._queue = Queue(cluster.bootstrap, REST_JOBS, SUBSCRIPTION)
        self._history: QueueHistory | None = None
        self.transcripts: dict[str, Transcript] = {}
        self.gateways: list[GatewayNode] = []
        self._next_fault = 0.0
        self._away: dict[str, float] = {}
        """when a killed gateway is started again"""
        self._ending: dict[str, float] = {}
        """when a gateway was sent SIGTERM"""
        self._faults: list[str] = []
        self._violations: list[str] = []

    def start(self) -> None:
        self._cluster.create_topic(REST_JOBS, PARTITIONS, configs={"dedup.window.ms": str(DEDUP_WINDOW_MS)})
        self._queue.subscribe()
        ports = free_ports(2) if self._cluster.network is None else (PORT, PORT)
        for number, (host, port) in enumerate(zip(self._cluster.client_hosts, ports, strict=True), 1):
            name = f"gateway-{number}"
            folder = self._cluster.folder / name
            self.gateways.append(GatewayNode(name, host, folder, bootstrap=self._cluster.bootstrap, port=port))
        for gateway in self.gateways:
            gateway.launch()
        for gateway in self.gateways:
            gateway.wait_ready()
        addresses = ",".join(gateway.address for gateway in self.gateways)
        first, second = self._cluster.client_hosts
        for host, role, name in (
            (first, "publisher", PUBLISHER),
            (first, "worker", WORKERS[0]),
            (second, "worker", WORKERS[1]),
        ):
            module = ["tests.chaos.rest_client", role, name, addresses, str(self._rate)]
            self.transcripts[name] = Transcript(self._processes.launch(host, name, module))
        self._next_fault = time.monotonic() + self._chance.uniform(*BETWEEN_FAULTS_SECONDS)

    def supervise(self) -> None:
        """Kill or stop one gateway after the other, and start them again."""
        self._processes.read_on(self.transcripts)
        now = time.monotonic()
        for gateway in self.gateways:
            self._heal(gateway, now)
        if now >= self._next_fault:
            self._next_fault = now + self._chance.uniform(*BETWEEN_FAULTS_SECONDS)
            if not self._ending and all(gateway.is_ready() for gateway in self.gateways):
                self._inject_fault(self._chance.choice(self.gateways), now)

    def stop_writers(self) -> None:
        self._next_fault = float("inf")
        self._processes.stop((PUBLISHER,), FLUSH_SECONDS + PATIENCE_SECONDS)

    def wait_finished(self) -> None:
        self._queue.wait_settled(self.transcripts, self.supervise)

    def stop_readers(self) -> None:
        self._processes.stop(WORKERS, PATIENCE_SECONDS)
        for gateway in self.gateways:
            if gateway.is_running and (code := gateway.terminate()) != 0:
                self._violations.append(f"{gateway.name} ended with exit code {code} on SIGTERM")

    def kill(self) -> None:
        for gateway in self.gateways:
            gateway.kill()

    def check(self) -> list[str]:
        found = [
            *self._violations,
            *check_queue_clients(self.transcripts, PUBLISHER),
            *check_queue(self._whole_history()),
        ]
        for name in WORKERS:  # they report only responses that no gateway may send
            found += [f"{name}: {error}" for error in self.transcripts[name].errors]
        return found + find_logged_bugs(self.gateways)

    def counts(self) -> dict[str, int]:
        kills = sum(fault.startswith("kill") for fault in self._faults)
        counts = {"gateways killed": kills, "gateways stopped": len(self._faults) - kills}
        return counts | self._whole_history().counts("REST queue")

    def _inject_fault(self, gateway: GatewayNode, now: float) -> None:
        if self._chance.random() < 0.7:
            self._faults.append(f"kill of {gateway.name}")
            gateway.kill()
            self._away[gateway.name] = now + self._chance.uniform(*DOWN_SECONDS)
        else:
            self._faults.append(f"stop of {gateway.name}")
            gateway.signal(signal.SIGTERM)
            self._ending[gateway.name] = now

    def _heal(self, gateway: GatewayNode, now: float) -> None:
        code = gateway.reap()
        if gateway.name in self._ending:
            if gateway.process is not None:
                if now > self._ending[gateway.name] + PATIENCE_SECONDS:
                    self._violations.append(f"{gateway.name} does not end on SIGTERM:\n{gateway.log_tail()}")
                    gateway.kill()
                return
            del self._ending[gateway.name]
            if code not in (0, None):
                self._violations.append(f"{gateway.name} ended with exit code {code} on SIGTERM")
        elif code is not None:
            self._violations.append(f"{gateway.name} ended by itself with exit code {code}")
        if gateway.process is None and now >= self._away.get(gateway.name, 0.0):
            gateway.launch()

    def _whole_history(self) -> QueueHistory:
        """Read the history once, when all clients have ended."""
        if self._history is None:
            self._processes.read_on(self.transcripts)
            self._history = self._queue.history(self.transcripts)
            self._history.wrong_clocks = self._cluster.wrong_clocks
        return self._history
