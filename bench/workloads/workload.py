"""The base class of workloads, and the metrics that most of them share.

Dirty pages are written out before each trial, so that no trial includes the write-back of an earlier one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures import Metric
from bench.load import LoadProcess, start_rkload
from bench.processes import kernel_cpu_seconds_since, kernel_cpu_ticks
from bench.server import Server

PARTITIONS = 4

RECORDS_PER_S = Metric("records_per_s", "records/s", "higher", 0)
MB_PER_S = Metric("mb_per_s", "MB/s", "higher", 1)
CPU_S_PER_GB = Metric("cpu_s_per_gb", "server CPU s/GB", "lower", 3)
CPU_S_PER_M = Metric("cpu_s_per_m", "server CPU s/M records", "lower", 3)
KERNEL_S_PER_GB = Metric("kernel_s_per_gb", "kernel threads' CPU s/GB", "lower", 3)
PEAK_RSS_MB = Metric("peak_rss_mb", "peak RSS MB", "lower", 0)
CLIENT_CORES = Metric("client_cores", "client cores", "lower", 2)


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of one peer: its running server, the scale of the load, and the x value if there is one."""

    server: Server
    scale: float
    point: int | None = None

    def scaled(self, count: int) -> int:
        return int(count * self.scale)

    def start_load(self, mode: str, topic: str, records: int, size: int, **settings: str) -> LoadProcess:
        """Start a librdkafka load generator on the topic's four partitions; load/rkload.c has the modes."""
        return start_rkload(mode, self.server.address, topic, records, size, PARTITIONS, settings)


class Workload(ABC):
    """One kind of load. With `fresh`, every trial starts a new server; otherwise servers are warm."""

    name: str
    title: str
    peers: Sequence[str]
    metrics: Sequence[Metric]
    plotted: Sequence[Metric]  # the metrics that have a panel in the plot
    fresh: bool = False
    points: Sequence[int | None] = (None,)  # the x values of a line; (None,) without a line
    x_title: str = ""

    def prepare(self, trial: Trial) -> None:  # noqa: B027 - most need no preparation
        """Prepare a server before its first trial."""

    @abstractmethod
    def measure(self, trial: Trial) -> dict[str, float]:
        """Return the figures of one trial."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The report of a load generator, and the cost for the server."""

    load: dict[str, Any]
    cpu_s: float
    kernel_cpu_s: float  # of kernel threads during the load
    peak_rss_mb: float


def measure_cost(server: Server, start: Callable[..., LoadProcess], *arguments: Any, **settings: str) -> Cost:
    """Run one load and measure the CPU time and memory of the server."""
    os.sync()
    server.process.reset_peak_rss()
    running = start(*arguments, **settings)
    before, kernel_before = server.process.cpu_seconds(), kernel_cpu_ticks()
    load = running.result()
    cpu_s, kernel_cpu_s = server.process.cpu_seconds() - before, kernel_cpu_seconds_since(kernel_before)
    server.process.check_alive()
    return Cost(load, cpu_s, kernel_cpu_s, server.process.peak_rss_bytes() / 1e6)


def flow_figures(cost: Cost) -> dict[str, float]:
    """Return throughput and cost of a load at the maximum rate."""
    records, size, wall_s = cost.load["records"], cost.load["bytes"], cost.load["wall_s"]
    return {
        RECORDS_PER_S.key: records / wall_s,
        MB_PER_S.key: size / wall_s / 1e6,
        CPU_S_PER_GB.key: cost.cpu_s / (size / 1e9),
        CPU_S_PER_M.key: cost.cpu_s / (records / 1e6),
        KERNEL_S_PER_GB.key: cost.kernel_cpu_s / (size / 1e9),
        PEAK_RSS_MB.key: cost.peak_rss_mb,
        CLIENT_CORES.key: cost.load["client_cpu_s"] / wall_s,
    }


FLOW_PLOTTED = (MB_PER_S, CPU_S_PER_GB)
FLOW_METRICS = (MB_PER_S, RECORDS_PER_S, CPU_S_PER_GB, CPU_S_PER_M, KERNEL_S_PER_GB, PEAK_RSS_MB, CLIENT_CORES)
