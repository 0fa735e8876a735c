"""The targets of the project in comparison with its peers; missed targets are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.figures import Sample, ratio, spread

# Medians of repeated runs differ by about this factor without any change.
_FLAT = 1.3
# Queues where each batch is settled by its own request, and those that settle many batches together; Headrace's
# configurations, and the durable peers.
_BATCH_BY_BATCH = (("headrace", "headrace-prefetch"), ("redis-fsync", "nats-fsync", "rabbitmq"))
_GATHERED = (("headrace-gather",), ("kafka-fsync",))
_ALL_QUEUES = (_BATCH_BY_BATCH[0] + _GATHERED[0], _BATCH_BY_BATCH[1] + _GATHERED[1])


@dataclass(frozen=True, slots=True)
class Target:
    """`measured` returns None if the run has no such figure; `limit` is a lower bound if `above`, else an upper one."""

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
    """Evaluate the targets that this run has measured; `samples` are by workload."""
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


def _own(key: str, subject: str = "headrace") -> Callable[[Sequence[Sample]], float | None]:
    def measured(samples: Sequence[Sample]) -> float | None:
        found = spread(samples, subject, key)
        return found.median if found else None

    return measured


def _growth(key: str) -> Callable[[Sequence[Sample]], float | None]:
    """Divide Headrace's cost at the last point by its cost at the first."""

    def measured(samples: Sequence[Sample]) -> float | None:
        points = sorted({s.point for s in samples if s.peer == "headrace" and s.point is not None})
        if len(points) < 2:
            return None
        first, last = (spread(samples, "headrace", key, point) for point in (points[0], points[-1]))
        return last.median / first.median if first and last and first.median else None

    return measured


def _versus_best(
    key: str, best: Callable[[Sequence[float]], float], queues: tuple[Sequence[str], Sequence[str]]
) -> Callable[[Sequence[Sample]], float | None]:
    """Divide the best of Headrace by the best of the peers in each round."""

    def measured(samples: Sequence[Sample]) -> float | None:
        ratios = []
        for number in {sample.round for sample in samples}:
            ours, theirs = (
                [s.figures[key] for s in samples if s.round == number and s.peer in peers and s.figures.get(key)]
                for peers in queues
            )
            if ours and theirs:
                ratios.append(best(ours) / best(theirs))
        return median(ratios) if ratios else None

    return measured


def _queue(workload: str, times: float | None) -> list[Target]:
    """Return the targets of a queue; `times` is the target for lease and ack relative to the best similar peer."""
    targets = [Target(workload, "published/s ÷ best", 1, True, _versus_best("publish_per_s", max, _ALL_QUEUES))]
    for way, queues in (("", _BATCH_BY_BATCH), (", gathered", _GATHERED)):
        if times is not None:
            settled = _versus_best("settle_per_s", max, queues)
            targets.append(Target(workload, f"leased+acked/s{way} ÷ best", times, True, settled))
        cpu = _versus_best("cpu_s_per_m", min, queues)
        targets.append(Target(workload, f"CPU s/M{way} ÷ best", 0.333, False, cpu))
    return targets


def _produce(workload: str, per_cpu_second: float) -> list[Target]:
    return [
        Target(workload, "CPU s/GB ÷ kafka-fsync", round(1 / per_cpu_second, 3), False, _versus("cpu_s_per_gb")),
        Target(workload, "MB/s ÷ kafka-fsync", 1, True, _versus("mb_per_s")),
    ]


def _scan(workload: str) -> list[Target]:
    key, ours = "all_rows_per_s", "headrace-spark"
    return [
        Target(workload, "rows/s, all columns ÷ kafka-spark", 2, True, _versus(key, "kafka-spark", ours)),
        Target(workload, "rows/s, all columns ÷ parquet-spark", 0.5, True, _versus(key, "parquet-spark", ours)),
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
    Target("queue-delayed", "memory MB", 200, False, _own("rss_mb")),
    Target("queue-delayed", "restart s", 10, False, _own("restart_s")),
    Target("queue-delayed", "late p99 ms", 100, False, _own("late_p99_ms")),
    Target("queue-backlog", "state MB", 20, False, _own("state_mb")),
    Target("queue-backlog", "restart s", 5, False, _own("restart_s")),
    *_queue("queue-1", None),
    *_queue("queue-10", 2),
    *_queue("queue-100", 3),
    *_queue("queue-1-by-16", 1),
    *_queue("queue-10-by-16", 2),
    *_queue("queue-100-by-16", 3),
    Target(
        "rest-publish",
        "requests/CPU s ÷ uvicorn-echo",
        0.5,
        True,
        _versus("requests_per_cpu_s", "uvicorn-echo", "headrace-rest"),
    ),
    Target("rest-publish-100", "messages/CPU s", 150_000, True, _own("messages_per_cpu_s", "headrace-rest")),
    *_scan("spark-scan-100"),
    *_scan("spark-scan-100-lz4"),
    *_scan("spark-scan-100-zstd"),
    Target("spark-batches", "ms per trigger, to noop", 300, False, _own("noop_ms", "headrace-spark")),
    Target("spark-batches", "ms per trigger, to a topic", 300, False, _own("topic_ms", "headrace-spark")),
]
