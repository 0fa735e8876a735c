"""What a workload is, and the figures that most of them share.

A turn begins from rest: dirty pages are written out first, so that nobody pays for what another left behind.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures import Metric
from bench.load import Running, start_rkload
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
class Turn:
    """One peer's turn: its running server, the share of the full load, the place on the x axis if any."""

    server: Server
    scale: float
    point: int | None = None

    def scaled(self, count: int) -> int:
        return int(count * self.scale)

    def start_load(self, mode: str, topic: str, records: int, size: int, **settings: str) -> Running:
        """A load of librdkafka on the topic's four partitions; see load/rkload.c for the modes."""
        return start_rkload(mode, self.server.address, topic, records, size, PARTITIONS, settings)


class Workload(ABC):
    """One kind of load. `fresh`: every turn starts a server of its own, else warm ones are handed in."""

    name: str
    title: str
    peers: Sequence[str]
    metrics: Sequence[Metric]
    plotted: Sequence[Metric]  # those of the metrics that get a panel of the plot
    fresh: bool = False
    points: Sequence[int | None] = (None,)  # the x axis of a line; a single None where there is no line
    x_title: str = ""

    def prepare(self, turn: Turn) -> None:  # noqa: B027, most need nothing
        """Once per server, before its first turn."""

    @abstractmethod
    def measure(self, turn: Turn) -> dict[str, float]:
        """The figures of one turn."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a load reported, and what the server spent on it."""

    load: dict[str, Any]
    cpu_s: float
    kernel_cpu_s: float  # of the kernel's own threads meanwhile
    peak_rss_mb: float


def charge(server: Server, start: Callable[..., Running], *arguments: Any, **settings: str) -> Cost:
    """Run one load from rest and charge the server's CPU time to it."""
    os.sync()
    server.process.forget_peak()
    running = start(*arguments, **settings)
    before, kernel_before = server.process.cpu_seconds(), kernel_cpu_ticks()
    load = running.result()
    cpu_s, kernel_cpu_s = server.process.cpu_seconds() - before, kernel_cpu_seconds_since(kernel_before)
    server.process.check_alive()
    return Cost(load, cpu_s, kernel_cpu_s, server.process.peak_rss_bytes() / 1e6)


def flow_figures(cost: Cost) -> dict[str, float]:
    """Throughput and cost of a load that moved records as fast as it could."""
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
