"""Metrics: they parse as Prometheus' text, whatever topics and groups are called, and say what is true."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.asking import batch, produce, read_all, send
from tests.unit.broker.house import House
from tests.unit.broker.members import Member, commit

from headrace.broker.coordinator import Coordinator
from headrace.doors.kafka.listener import DoorLimits, KafkaDoor
from headrace.model.histogram import Histogram
from headrace.server import metrics as metrics_module
from headrace.server.metrics import Exposition, Metrics
from headrace.testkit.world import World

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples and types; fails where the format is broken."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    family = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in types, f"{family} stands in two places"
            assert kind in ("counter", "gauge", "histogram")
            types[family] = kind
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        base = re.sub("_(bucket|sum|count)$", "", name) if types[family] == "histogram" else name
        assert base == family, f"{name} stands among {family}"
        found = _LABEL.findall(labels or "")
        assert _LABEL.sub("", labels or "") == "", labels
        key = name, frozenset((label, _unescaped(text)) for label, text in found)
        assert key not in samples, f"{line} stands there twice"
        samples[key] = float(value)
    return samples, types


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], text)


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def in_house(test: Callable[[House, Metrics], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test in a world with a broker and its metrics."""

    async def go(house: House) -> None:
        await house.open()
        broker, host = house.broker, house.host
        door = KafkaDoor("PLAINTEXT", broker.handlers, host.network, host.clock, DoorLimits())
        await test(house, Metrics(broker, door, host.clock))

    def run() -> None:
        world = World(seed=1)
        world.run(go(House(world)))
        world.close()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_house
async def test_what_happened_is_what_is_told(house: House, metrics: Metrics) -> None:
    await house.make_topic("t", 2)
    await house.make_topic("quiet")
    await produce(house, "t", b"a", b"b", b"c")
    await send(house, "t", b"x" * 99)
    await read_all(house, "t")
    member = Member(house)
    await member.enter()
    await member.commit(1)
    samples, types = parse(metrics.render())
    total = "kafka_server_brokertopicmetrics_{}_total"
    assert sample(samples, total.format("messagesin"), topic="t") == 3
    assert sample(samples, total.format("bytesin"), topic="t") == house.partition("t").log.size_bytes
    assert sample(samples, total.format("bytesout"), topic="t") == house.partition("t").log.size_bytes
    assert sample(samples, total.format("messagesin"), topic="quiet") == 0
    assert types[total.format("messagesin")] == "counter"
    assert sample(samples, "kafka_topic_partition_current_offset", topic="t", partition="0") == 3
    assert sample(samples, "kafka_topic_partition_oldest_offset", topic="t", partition="1") == 0
    assert sample(samples, "kafka_topic_partitions", topic="t") == 2
    assert sample(samples, "kafka_consumergroup_members", consumergroup="readers") == 1
    where = {"consumergroup": "readers", "topic": "t", "partition": "0"}
    assert sample(samples, "kafka_consumergroup_current_offset", **where) == 1
    assert sample(samples, "kafka_consumergroup_lag", **where) == 2
    assert sample(samples, "kafka_server_replicamanager_partitioncount") == 5
    assert sample(samples, "headrace_logs_failed") == 0


@in_house
async def test_offsets_in_topics_that_are_gone_have_no_lag(house: House, metrics: Metrics) -> None:
    await house.make_topic("t")
    await commit(house, 5)
    house.broker.catalogue.on_gone.clear()
    await house.delete_topic("t")
    samples, types = parse(metrics.render())
    assert "kafka_consumergroup_lag" not in types
    where = {"consumergroup": "readers", "topic": "t", "partition": "0"}
    assert sample(samples, "kafka_consumergroup_current_offset", **where) == 5


@in_house
async def test_a_group_may_be_called_anything(house: House, metrics: Metrics) -> None:
    await house.make_topic("t")
    names = ['quo"te', "back\\slash", "new\nline", '"} 1\nfake_metric 2', "ü😀", "{a=b}", "\\n"]
    for name in names:
        assert await commit(house, 1, "t", name) == 0
    samples, types = parse(metrics.render())
    assert "fake_metric" not in types
    for name in names:
        assert sample(samples, "kafka_consumergroup_members", consumergroup=name) == 0


@in_house
async def test_many_partitions_are_told_per_topic_only(house: House, metrics: Metrics) -> None:
    await house.make_topic("wide", metrics_module._PARTITION_SERIES_MAX + 1)
    text = metrics.render()
    samples, types = parse(text)
    assert "kafka_topic_partition_current_offset" not in types
    assert sample(samples, "kafka_topic_partitions", topic="wide") == metrics_module._PARTITION_SERIES_MAX + 1
    assert len(text) < 20_000


@in_house
async def test_readiness_names_what_is_wrong(house: House, metrics: Metrics) -> None:
    await house.make_topic("t")
    assert metrics.checks() == {"groups": None, "disk": None, "logs": None, "registry": None}
    house.host.disk.capacity_bytes = 1000
    await house.pass_time(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "is_loaded", False)
        checks = metrics.checks()
    assert checks["groups"] == "the groups are still being read"
    assert checks["disk"] is not None


@in_house
async def test_a_log_that_failed_is_counted_and_makes_the_broker_unready(house: House, metrics: Metrics) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    house.host.disk.fail_next("sync", "*.log")
    assert (await send(house, "t", batch(b"b"))).error_code == 56
    assert metrics.checks()["logs"] == "1 partitions are out of service; see the log"
    samples, _ = parse(metrics.render())
    assert sample(samples, "headrace_logs_failed") == 1


@in_house
async def test_requests_are_told_as_histograms(house: House, metrics: Metrics) -> None:
    (handler,) = [handler for handler in house.broker.handlers if handler.api.name == "Produce"]
    for seconds in (0.00005, 0.002, 0.002, 100.0):
        handler.time.observe(seconds)
    samples, types = parse(metrics.render())
    name = "headrace_request_duration_seconds"
    assert types[name] == "histogram"
    assert sample(samples, f"{name}_count", api="Produce") == 4
    assert sample(samples, f"{name}_bucket", api="Produce", le="0.0001") == 1
    assert sample(samples, f"{name}_bucket", api="Produce", le="0.0025") == 3
    assert sample(samples, f"{name}_bucket", api="Produce", le="10.0") == 3
    assert sample(samples, f"{name}_bucket", api="Produce", le="+Inf") == 4


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(st.characters(codec="utf-8"))), unique=True))
def test_lines_of_a_family_stand_together_and_labels_come_back(added: list[tuple[str, str]]) -> None:
    exposition = Exposition()
    exposition.add("last", 1.5)
    for number, (name, label) in enumerate(added):
        exposition.add(name, number, {"label": label})
    exposition.add_histogram("h", Histogram(), {"x": "y"})
    samples, _ = parse(exposition.text())
    for number, (name, label) in enumerate(added):
        assert sample(samples, name, label=label) == number
