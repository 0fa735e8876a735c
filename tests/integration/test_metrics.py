"""The metrics of a real broker under a small load: every documented metric is exported with the correct value."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, ShareConsumer
from tests.integration.conftest import Figures, StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.records import create_topic, produce
from tests.unit.server.metrics.metrics_page import MetricsPage
from tests.unit.server.metrics.test_deployed import DASHBOARD_7589, KAFKA_EXPORTER, alerts, dashboard, names_in

JOBS = 200

# What there is only when something is wrong, of push, or of a gateway.
NOT_OF_A_HEALTHY_BROKER = {
    "headrace_log_quarantined",
    "headrace_push_circuit_state",
    "headrace_push_delivered_total",
    "headrace_push_failed_total",
}


def scrape(broker: BrokerProcess) -> MetricsPage:
    return MetricsPage(broker.http_get("/metrics"))


def run(broker: BrokerProcess, *words: str) -> list[Any]:
    """Run a `headrace` command; return the rows of its output."""
    command = [str(Path(sys.executable).with_name("headrace")), *words, "--server", broker.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_all(broker: BrokerProcess, topic: str, group: str, count: int, protocol: str) -> Consumer:
    """A member of a consumer group that has read and committed records, and is still active."""
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    left = count
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < deadline:
        left -= len([one for one in consumer.consume(left, 0.5) if one.error() is None])
    assert not left
    consumer.commit(asynchronous=False)
    return consumer


def work(broker: BrokerProcess, topic: str, count: int) -> None:
    """A share consumer that acknowledges records: it releases every tenth once and rejects every fiftieth."""
    settings = {"bootstrap.servers": broker.address, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
    with closing(ShareConsumer(settings)) as consumer:
        consumer.subscribe([topic])
        settled: set[int] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(settled) < count:
            assert time.monotonic() < deadline, f"{len(settled)} of {count} were settled"
            for message in consumer.poll(0.5):
                if message.error() is not None:
                    continue
                offset = message.offset()
                assert offset is not None
                if offset % 50 == 49:
                    consumer.acknowledge(message, AcknowledgeType.REJECT)
                    settled.add(offset)
                elif offset % 10 == 5 and message.delivery_count() == 1:
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    consumer.acknowledge(message)
                    settled.add(offset)
            consumer.commit_sync(30)


@pytest.fixture
def busy(broker: BrokerProcess) -> BrokerProcess:
    """A broker on which every measured event has happened."""
    run(broker, "topic", "create", "jobs", "-p", "1", "-c", "dedup.window.ms=60000")
    create_topic(broker.address, "orders", 2)
    run(broker, "subscription", "create", "jobs", "workers", "--at", "start")
    produce(broker.address, "jobs", [b"%d" % number for number in range(JOBS)])
    produce(broker.address, "orders", [b"%d" % number for number in range(50)])
    work(broker, "jobs", JOBS)
    run(broker, "schedule", "add", "orders", "later", "--delay", "1h")
    assert broker.http_get("/livez") == "ok\n"
    return broker


def test_every_documented_metric_is_exported(busy: BrokerProcess) -> None:
    with (
        closing(read_all(busy, "orders", "classic", 50, "classic")),
        closing(read_all(busy, "orders", "newer", 50, "consumer")),
    ):
        page = scrape(busy)
    board = dashboard()
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    expressions += [rule["expr"] for rule in alerts()]
    requested = set().union(*map(names_in, expressions)) | {*DASHBOARD_7589, *KAFKA_EXPORTER}
    assert requested - NOT_OF_A_HEALTHY_BROKER <= page.kinds.keys()
    for group in ("classic", "newer"):
        assert page.value("kafka_consumergroup_members", consumergroup=group) == 1
        assert page.value("kafka_consumergroup_lag_sum", consumergroup=group, topic="orders") == 0
        assert page.value("kafka_consumergroup_current_offset_sum", consumergroup=group, topic="orders") == 50


def test_share_groups_have_metrics(busy: BrokerProcess) -> None:
    def output(name: str) -> float:
        return page.value(f"headrace_subscription_{name}", subscription="workers", topic="jobs")

    wait_until(
        lambda: (
            scrape(busy).value("headrace_subscription_dead_letters_total", subscription="workers", topic="jobs")
            == JOBS / 50
        ),
        "the dead letters are kept",
    )
    page = scrape(busy)
    assert output("acks_total") == JOBS - JOBS / 50
    assert output("rejects_total") == JOBS / 50
    assert output("nacks_total") == JOBS / 10
    assert output("redeliveries_total") >= JOBS / 10
    assert output("deliveries_total") >= JOBS + JOBS / 10
    assert output("backlog") == 0
    assert output("oldest_age_seconds") == 0
    assert output("settle_seconds_count") == JOBS - JOBS / 50
    assert 0 < output("end_to_end_seconds_count") <= JOBS
    assert output("delivery_seconds_count") <= JOBS
    assert page.value("kafka_consumergroup_lag", consumergroup="workers", topic="jobs", partition=0) == 0
    assert page.value("headrace_dead_letters", topic="jobs") == JOBS / 50
    assert page.value("headrace_delayed_messages", topic="orders") == 1
    assert page.value("headrace_http_requests_total", status="2xx") > 0
    assert page.value("headrace_loop_lag_seconds_count") > 0
    assert page.value("headrace_fsync_seconds_count") > 0


def test_top_shows_the_same_values(busy: BrokerProcess) -> None:
    rows = run(busy, "top", "--once", "--interval", "0.2", "--http", f"127.0.0.1:{busy.http_port}")
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("topic", "subscription", "broker")}
    topics = {row["topic"]: row for row in by_kind["topic"]}
    assert (topics["jobs"]["end"], topics["orders"]["end"]) == (JOBS, 50)
    assert topics["orders"]["bytes_in_per_s"] is not None
    (subscription,) = by_kind["subscription"]
    assert (subscription["subscription"], subscription["backlog"]) == ("workers", 0)
    (broker,) = by_kind["broker"]
    assert broker["memory"] > 1_000_000
    assert broker["connections"] >= 1


def test_a_scrape_of_many_partitions_does_not_delay_requests(start_broker: StartBroker, figures: Figures) -> None:
    broker = start_broker()
    for number in range(10):
        create_topic(broker.address, f"wide{number}", 200)
    create_topic(broker.address, "live", 1)
    slowest = longest_of(lambda: broker.http_get("/livez"), lambda: scrape_often(broker))
    figures.add(f"2000 partitions: /livez took {slowest * 1000:.0f} ms at most during scrapes")


def scrape_often(broker: BrokerProcess) -> None:
    for _ in range(3):
        MetricsPage(broker.http_get("/metrics"))
        time.sleep(1.0)


def longest_of(probe: Callable[[], object], load: Callable[[], None]) -> float:
    """Return the maximum latency of the probe during the load."""
    loading = threading.Thread(target=load)
    loading.start()
    longest = 0.0
    while loading.is_alive():
        began = time.monotonic()
        probe()
        longest = max(longest, time.monotonic() - began)
    return longest
