"""Tables, targets and plot."""

from __future__ import annotations

import json
from xml.etree import ElementTree as Xml

from bench.figures import Sample
from bench.plot import draw
from bench.report import Run, as_json, as_markdown, comparisons
from bench.schedule import WorkloadResult
from bench.targets import judge
from bench.tests.fakes import FakePeer, FakeWorkload

_PEERS = {
    "headrace": FakePeer("headrace"),
    "headrace-cache": FakePeer("headrace-cache", flushes=False),
    "headrace-3": FakePeer("headrace-3", brokers=3),
    "kafka-fsync": FakePeer("kafka-fsync"),
    "kafka": FakePeer("kafka", flushes=False),
    "kafka-3-fsync": FakePeer("kafka-3-fsync", brokers=3),
    "kafka-3": FakePeer("kafka-3", flushes=False, brokers=3),
}


def _bars() -> WorkloadResult:
    samples = [Sample("headrace", 1, {"speed": 30.0}), Sample("kafka-fsync", 1, {"speed": 10.0})]
    return WorkloadResult(FakeWorkload(["headrace", "kafka-fsync"]), samples, {"kafka": "stalled"})


def _lines() -> WorkloadResult:
    samples = [Sample("headrace", 1, {"speed": 5.0}, point) for point in (1, 10, 1000)]
    return WorkloadResult(FakeWorkload(["headrace"], points=(1, 10, 1000)), samples)


def _run() -> Run:
    machine, versions = {"cores": "2"}, {"headrace": "0.1"}
    return Run("2026-01-01", "bench", 1, 1.0, machine, versions, {"redis": "gone"}, [_bars(), _lines()], _PEERS)


def test_the_table_has_figures_ratios_failures_and_missing_peers() -> None:
    text = as_markdown(_run(), "plot.svg")
    assert "30.0 [30.0 .. 30.0]" in text
    assert "| **headrace ÷ kafka-fsync** | 3.00 [3.00 .. 3.00]" in text
    assert "kafka failed: stalled" in text
    assert "Not measured: redis (gone)." in text


def test_peers_of_the_same_durability_are_compared_if_both_were_measured() -> None:
    single = ["headrace", "headrace-cache", "kafka-fsync", "kafka"]
    assert comparisons(single, _PEERS) == [("headrace", "kafka-fsync"), ("headrace-cache", "kafka")]
    assert comparisons(["headrace", "kafka"], _PEERS) == [("headrace", "kafka")]


def test_a_cluster_is_compared_with_clusters_and_with_a_single_broker_of_the_same_kind() -> None:
    assert comparisons(["headrace", "headrace-3", "kafka-3-fsync", "kafka-3"], _PEERS) == [
        ("headrace-3", "headrace"),
        ("headrace-3", "kafka-3-fsync"),
        ("headrace-3", "kafka-3"),
    ]
    assert comparisons(["headrace-3", "kafka-3"], _PEERS) == [("headrace-3", "kafka-3")]


def test_the_json_contains_every_sample() -> None:
    document = json.loads(as_json(_run()))
    assert document["workloads"]["fake"]["samples"]
    assert document["missing"] == {"redis": "gone"}


def test_the_plot_is_well_formed_and_has_a_panel_for_each_workload() -> None:
    texts = [element.text for element in Xml.fromstring(draw([_bars(), _lines()], "a & b")).iter() if element.text]
    assert texts.count("fake: MB/s") == 2
    assert "a & b" in texts


def test_missed_targets_are_reported_and_unmeasured_ones_omitted() -> None:
    samples = [Sample("headrace", 1, {"rss_mb": 90.0}), Sample("kafka-fsync", 1, {"rss_mb": 600.0})]
    (verdict,) = judge({"memory": samples})
    assert not verdict.met
    assert verdict.target.wanted == "≤ 0.1"


def test_our_best_queue_is_compared_with_the_best_durable_peer_that_settles_batch_by_batch() -> None:
    speeds = {"headrace": 30.0, "headrace-prefetch": 90.0, "redis-fsync": 20.0, "rabbitmq": 30.0, "redis": 500.0}
    gathered = {"headrace-gather": 800.0, "kafka-fsync": 400.0}
    samples = [Sample(peer, 1, {"settle_per_s": speed}) for peer, speed in {**speeds, **gathered}.items()]
    verdicts = judge({"queue-100": samples})
    assert [(verdict.value, verdict.met) for verdict in verdicts] == [(3, True), (2, False)]


def test_queues_are_compared_with_the_headrace_that_is_consumed_the_same_way() -> None:
    peers = {
        "headrace": FakePeer("headrace"),
        "headrace-prefetch": FakePeer("headrace-prefetch", consumes="prefetches"),
        "redis": FakePeer("redis", flushes=False),
        "rabbitmq": FakePeer("rabbitmq", consumes="prefetches"),
    }
    assert comparisons(list(peers), peers) == [("headrace", "redis"), ("headrace-prefetch", "rabbitmq")]
