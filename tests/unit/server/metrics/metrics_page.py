"""A strict parser of the Prometheus text format, written independently of the writer, and brokers to scrape."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedClusterBroker

from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.server.metrics import BrokerMetrics
from headrace.testkit.world import World

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.+)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_KINDS = frozenset({"counter", "gauge", "histogram"})


class MetricsPage:
    """A parsed page; the constructor fails if the page violates the format."""

    def __init__(self, text: str) -> None:
        self.samples: Samples = {}
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self._family = ""
        assert text.endswith("\n")
        for line in text[:-1].split("\n"):
            if line.startswith("#"):
                self._take_comment(line)
            else:
                self._take_sample(line)
        self._check_histograms()

    def value(self, name: str, **labels: str | int) -> float:
        return self.samples[name, frozenset((label, str(value)) for label, value in labels.items())]

    def labels(self, name: str) -> list[dict[str, str]]:
        """Of every sample of this name."""
        return [dict(labels) for sample, labels in self.samples if sample == name]

    def _take_comment(self, line: str) -> None:
        match = _COMMENT.fullmatch(line)
        assert match, line
        what, name, text = match.groups()
        if what == "HELP":
            assert name not in self.helps, f"{name} stats in two places"
            assert not re.search(r"\\[^\\n]", text), "in a help only backslashes and ends of lines are escaped"
            self.helps[name] = text
        else:
            assert text in _KINDS
            assert name in self.helps, f"{name} has no help before its type"
            assert name not in self.kinds, f"{name} stats in two places"
            self.kinds[name] = text
            self._family = name

    def _take_sample(self, line: str) -> None:
        match = _SAMPLE.fullmatch(line)
        assert match, line
        name, text, number = match.groups()
        kind = self.kinds[self._family]
        base = re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name
        assert base == self._family, f"{name} stats among {self._family}"
        found = _LABEL.findall(text or "")
        assert _LABEL.sub("", text or "") == "", text
        assert len({label for label, _ in found}) == len(found), f"a label stats twice in {line}"
        key = name, frozenset((label, _unescaped(value)) for label, value in found)
        assert key not in self.samples, f"{line} stats there twice"
        value = self.samples[key] = float(number)
        assert math.isfinite(value), line
        if kind == "counter":
            assert name.endswith("_total"), f"{name} is a counter and does not say so"
            assert value >= 0

    def _check_histograms(self) -> None:
        for name in (name for name, kind in self.kinds.items() if kind == "histogram"):
            buckets: dict[Labels, list[tuple[float, float]]] = {}
            for (sample, labels), value in self.samples.items():
                if sample == f"{name}_bucket":
                    (bound,) = [text for label, text in labels if label == "le"]
                    rest = frozenset(pair for pair in labels if pair[0] != "le")
                    buckets.setdefault(rest, []).append((float(bound), value))
            for labels, found in buckets.items():
                assert found == sorted(found), f"the buckets of {name} do not ascend"
                assert [count for _, count in found] == sorted(count for _, count in found)
                assert found[-1] == (math.inf, self.samples[f"{name}_count", labels])
                assert (f"{name}_sum", labels) in self.samples


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], text)


def metrics_of(simulated_broker: SimulatedBroker | SimulatedClusterBroker) -> BrokerMetrics:
    broker, host = simulated_broker.broker, simulated_broker.host
    kafka_server = KafkaServer("PLAINTEXT", broker.handlers, host.network, host.clock, ListenerLimits())
    return BrokerMetrics(broker, kafka_server, host.clock)


async def scrape(simulated_broker: SimulatedBroker | SimulatedClusterBroker) -> MetricsPage:
    page: bytes = await simulated_broker.host.start(metrics_of(simulated_broker).page(), "scrape")
    return MetricsPage(page.decode())


def with_simulated_broker(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test in a world with a broker."""

    @wraps(test)
    def run() -> None:
        world = World(seed=1)
        simulated_broker = SimulatedBroker(world)
        try:
            world.run(simulated_broker.open())
            world.run(test(simulated_broker))
            world.run(simulated_broker.pass_time(1))
            simulated_broker.check()
        finally:
            world.close()

    run.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return run
