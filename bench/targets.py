"""What the project wants to show against Kafka, as conditions on the figures; a shortfall is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Sample, ratio, spread

# Medians of repeated runs here differ by about this much when nothing changed.
_FLAT = 1.3


@dataclass(frozen=True, slots=True)
class Target:
    """`measured` is None where the run did not measure it; `limit` bounds it from above or from below."""

    workload: str
    what: str
    limit: float
    above: bool
    measured: Callable[[Sequence[Sample]], float | None]

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.above else '≤'} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.above else value <= self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    target: Target
    value: float

    @property
    def met(self) -> bool:
        return self.target.is_met(self.value)


def judge(samples: Mapping[str, Sequence[Sample]]) -> list[Verdict]:
    """The targets that this run can speak to, by workload name."""
    verdicts = []
    for target in TARGETS:
        value = target.measured(samples.get(target.workload, ()))
        if value is not None:
            verdicts.append(Verdict(target, value))
    return verdicts


def _versus(
    key: str, peer: str = "kafka-fsync", subject: str = "headrace"
) -> Callable[[Sequence[Sample]], float | None]:
    def measured(samples: Sequence[Sample]) -> float | None:
        found = ratio(samples, subject, peer, key)
        return found.median if found else None

    return measured


def _own(key: str) -> Callable[[Sequence[Sample]], float | None]:
    def measured(samples: Sequence[Sample]) -> float | None:
        found = spread(samples, "headrace", key)
        return found.median if found else None

    return measured


def _growth(key: str) -> Callable[[Sequence[Sample]], float | None]:
    """Headrace's cost at the far end of the line over its cost at the near end."""

    def measured(samples: Sequence[Sample]) -> float | None:
        points = sorted({s.point for s in samples if s.peer == "headrace" and s.point is not None})
        if len(points) < 2:
            return None
        near, far = (spread(samples, "headrace", key, point) for point in (points[0], points[-1]))
        return far.median / near.median if near and far and near.median else None

    return measured


def _produce(workload: str, per_cpu_second: float) -> list[Target]:
    return [
        Target(workload, "CPU s/GB ÷ kafka-fsync", round(1 / per_cpu_second, 3), False, _versus("cpu_s_per_gb")),
        Target(workload, "MB/s ÷ kafka-fsync", 1, True, _versus("mb_per_s")),
    ]


TARGETS = [
    *_produce("produce-1k", 1.5),
    *_produce("produce-100", 1.5),
    *_produce("produce-1k-16k", 2),
    *_produce("produce-100-16k", 2),
    Target("consume-1k", "CPU s/GB ÷ kafka", 1, False, _versus("cpu_s_per_gb", "kafka")),
    Target("consume-100", "CPU s/GB ÷ kafka", 1, False, _versus("cpu_s_per_gb", "kafka")),
    Target("latency-fsync", "p50 ÷ kafka-fsync", 1, False, _versus("e2e_p50_ms")),
    Target("latency-fsync", "p99 ÷ kafka-fsync", 0.2, False, _versus("e2e_p99_ms")),
    Target("latency-cache", "p50 ÷ kafka", 1, False, _versus("e2e_p50_ms", "kafka", "headrace-cache")),
    Target("latency-cache", "p99 ÷ kafka", 1, False, _versus("e2e_p99_ms", "kafka", "headrace-cache")),
    Target("memory", "RSS ÷ kafka-fsync", 0.1, False, _versus("rss_mb")),
    Target("start-fresh", "time ÷ kafka-fsync", 0.1, False, _versus("start_s")),
    Target("start-after-kill", "time ÷ kafka-fsync", 0.1, False, _versus("start_s")),
    Target("start-after-kill", "seconds", 2, False, _own("start_s")),
    Target("compaction", "ack p99, with a pass ÷ without", 2, False, _own("p99_ratio")),
    Target("connections", "CPU per request, 1,000 ÷ 1", _FLAT, False, _growth("cpu_us_per_request")),
    Target("partitions", "CPU per request, 10,000 ÷ 1", _FLAT, False, _growth("cpu_us_per_request")),
]
