"""The report job against a broker: page and tables for no, one and many messages."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.unit.pipeline.audit.audit_support import InMemorySources, Row, events, row, rows, wait_for_dead_letters
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, Sent, sent
from tests.unit.pipeline.report.report_page_reader import PageReader

from headrace import Client
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import Commit, commit
from headrace.client.metadata import TopicPartition
from headrace.model.errors import InvalidRequest
from headrace.pipeline.job import JobResult
from headrace.pipeline.report.figures import GroupPartitionLag, Report, SubscriptionBacklog, TopicFacts, build_report
from headrace.pipeline.report.page import render_report_page
from headrace.pipeline.report.report_job import ReportJob, ReportSettings
from headrace.pipeline.report.tasks import (
    WINDOWS_MS,
    AcksPart,
    AcksTask,
    ReportPeriod,
    SettleFigures,
    Throughput,
    TopicPart,
    TopicTask,
    bucket_of,
    depths,
    largest_keys,
    percentile,
    read_acks,
    read_topic,
    times_of,
    window_for,
)
from headrace.pipeline.spark_tasks import PartitionRange, TopicSource
from headrace.wire.state_records.acks_records import Created, Failed, Redriven, Settled, Sought

NOON_MS = 1_700_000_000_000 // 3_600_000 * 3_600_000
EVER = ReportPeriod(60_000, 0, 1 << 53)


def reported(run: InProcessRun, folder: Path, **settings: Any) -> tuple[JobResult, PageReader]:
    job = ReportJob(msgspec.convert(settings, ReportSettings), folder)
    assert job.problems() == []
    outcome = job.once(run)
    assert outcome.ok
    page = (folder / "report.html").read_text("utf-8")
    assert not re.search(r"(?i)<script|https?://|@import|url\(|<link|<iframe| src=| on\w+=", page)
    return outcome, PageReader(page)


def table(run: InProcessRun, name: str) -> list[Row]:
    found: list[Row] = pq.read_table(run.work / "tables" / f"{name}.parquet").to_pylist()
    return found


# With a broker


def test_the_page_and_the_tables_have_the_figures(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, [Sent(b"big", b"x" * 100)] * 6)
    brokers.produce(topic, 1, [Sent(b"<small>", b"reject"), Sent(None, b"twice"), Sent(None, b"y")])
    with Client(brokers.address) as client:
        done = 0
        for message in client.subscribe(topic, "billing"):
            if message.value == b"twice" and message.attempt == 1:
                message.nack(reason="again")
                continue
            message.reject("no good") if message.value == b"reject" else message.ack()
            done += 1
            if done == 9:
                break
    wait_for_dead_letters(brokers.address, topic)
    brokers.produce(topic, 0, [Sent(b"big", b"late")] * 2)

    async def set_group(cluster: Cluster) -> None:
        await commit(cluster, f"{topic}-readers", {TopicPartition(topic, 0): Commit(3)})

    brokers.link.call(set_group)
    outcome, page = reported(run, tmp_path, topics=[topic])

    assert outcome.figures == {"topics": 1, "messages": 11}
    assert page.headings == ["Headrace report", topic, "Subscription billing", "Consumer groups"]
    assert page.tiles["Headrace report"]["messages"] == "11"
    assert page.tiles[topic]["bytes"] == "651 B"
    assert page.tiles["Subscription billing"] | {"half were acked within": "", "99 % within": ""} == {
        "acked": "8",
        "failed deliveries": "2",  # one came back, one was rejected
        "dead letters": "1",
        "backlog now": "2",
        "half were acked within": "",
        "99 % within": "",
    }
    assert page.charts == [
        *("Messages in", "Bytes in", "Messages by partition", "Biggest keys"),
        *("Publish to ack", "Acks, failed deliveries and dead letters", "Backlog"),
    ]
    assert page.tables[topic, "Messages by partition"][1:] == [["partition 0", "8"], ["partition 1", "3"]]
    assert page.tables[topic, "Biggest keys"][1:] == [["big", "8"], ["(no key)", "2"], ["<small>", "1"]]
    assert page.tables["Subscription billing", "Backlog"][-1][1] == "2"
    assert page.tables["Consumer groups", ""] == [
        ["group", "partition", "committed", "end", "lag"],
        [f"{topic}-readers", "0", "3", "8", "5"],
    ]
    assert sum(one["messages"] for one in table(run, "throughput")) == 11
    told = table(run, "subscriptions")
    assert [sum(one[name] for one in told) for name in ("acked", "failed", "dead")] == [8, 2, 1]
    assert table(run, "partitions")[0] == {"topic": topic, "partition": 0, "messages": 8, "bytes": 6 * 103 + 2 * 7}
    assert [one["lag"] for one in table(run, "lag")] == [5]


def test_an_empty_topic_is_reported(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    outcome, page = reported(run, tmp_path, topics=[topic])
    assert outcome.figures == {"topics": 1, "messages": 0}
    assert page.tiles[topic]["messages"] == "0"
    assert table(run, "throughput") == []


def test_one_message_is_reported(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(1))
    _, page = reported(run, tmp_path, topics=[topic], title="One <message>")
    assert page.headings[0] == "One <message>"
    assert page.tables[topic, "Messages in"] == [["window", "messages/s"], ["2023-11-14 22:13:20", "1/s"]]


def test_patterns_select_topics_and_only_selected_subscriptions_are_reported(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        brokers.create(f"{topic}.{name}")
        brokers.produce(f"{topic}.{name}", 0, sent(2))
    with Client(brokers.address) as client:
        for name in ("billing", "shipping"):
            client.create_subscription(f"{topic}.a", name, start="earliest")
    _, page = reported(run, tmp_path, topics=[rf"{topic}\.(a|b)"], subscriptions=["shipping"])
    assert page.headings[1:] == [f"{topic}.a", "Subscription shipping", f"{topic}.b"]
    assert [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")] == [
        f"#topic-{topic}.a",
        f"#topic-{topic}.b",
    ]


def test_only_the_selected_time_is_reported(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, [Sent(None, b"v", timestamp_ms=NOON_MS + minute * 60_000) for minute in range(10)])
    times = {"since": str(NOON_MS + 120_000), "until": str(NOON_MS + 300_000)}
    outcome, page = reported(run, tmp_path, topics=[topic], window="1m", **times)
    assert outcome.figures["messages"] == 3
    assert [row[1] for row in page.tables[topic, "Messages in"][1:]] == ["0.02/s"] * 3


def test_the_plan_needs_no_spark(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(4))
    job = ReportJob(ReportSettings(topics=[topic]), tmp_path)
    assert job.plan(run)[:2] == [f"{topic}: 4 offsets; subscriptions: none", f"page: {tmp_path / 'report.html'}"]
    assert run.sessions == 0


def test_a_stop_leaves_the_page_unchanged(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(4))
    run.stop_was_requested = True
    assert ReportJob(ReportSettings(topics=[topic]), tmp_path).once(run).ok
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"topics": []}, "topics: name at least one"),
        ({"topics": ["a"], "since": "yesterday"}, "since: 'yesterday' is not a time"),
        ({"topics": ["a"], "window": "wide"}, "window: 'wide' is not a duration"),
        ({"topics": ["a"], "window": "0s"}, "window: a window must be longer than 0"),
        ({"topics": ["a"], "html": "s3://b/page.html"}, "html: must be a local path"),
    ],
)
def test_invalid_settings_are_reported(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    [found] = ReportJob(msgspec.convert(settings, ReportSettings), tmp_path).problems()
    assert found.startswith(problem)


# What tasks count


def test_a_range_is_counted_by_window_and_key() -> None:
    held = [
        row(0, key=b"a", value=b"12345", timestamp=NOON_MS * 1000),
        row(1, key=None, value=None, timestamp=(NOON_MS + 59_999) * 1000),
        row(2, key=b"a", value=b"1", timestamp=(NOON_MS + 60_000) * 1000),
        row(3, key=b"b", value=b"1", timestamp=(NOON_MS + 120_000) * 1000),
    ]
    task = TopicTask(
        TopicSource("nowhere:1", "orders"), PartitionRange(1, 0, 4), ReportPeriod(60_000, 0, NOON_MS + 120_000)
    )
    part = read_topic(InMemorySources({("orders", 1): held}, rows_per_batch=1), task)
    assert part == TopicPart(
        1,
        {NOON_MS: Throughput(2, 6), NOON_MS + 60_000: Throughput(1, 2)},
        {b"a": Throughput(2, 8), None: Throughput(1, 0)},
        after=1,
    )


def test_only_the_keys_with_the_most_messages_are_kept() -> None:
    keys = {b"a": Throughput(1, 9), b"b": Throughput(3, 1), None: Throughput(2, 1)}
    assert list(largest_keys(keys, 2)) == [b"b", None]


def test_an_acks_log_is_counted_by_window_and_subscription() -> None:
    start = 1_700_000_000_000  # message n is published n ms later
    first, second = start // 60_000 * 60_000, start // 60_000 * 60_000 + 60_000
    log = events(
        ("billing", Created(at=start, floor=0)),
        ("billing", Settled(at=start + 104, how="ack", ranges=[(0, 4)])),
        ("billing", Failed(at=start + 200, first=5, last=6, attempts=1, due_ms=0)),
        ("billing", Settled(at=second, how="dead", ranges=[(5, 5)])),
        ("billing", Settled(at=second, how="expired", ranges=[(6, 7)])),
        ("billing", Sought(at=second + 1, floor=4)),
        ("billing", Redriven(at=second + 2, messages=[(3, 1)])),
        ("shipping", Created(at=start, floor=0)),
    )
    held = {("orders", 0): rows(0, 10), ("__acks.orders", 0): log}
    ranges = PartitionRange(0, 0, 10), PartitionRange(0, 0, len(log))
    task = AcksTask(TopicSource("nowhere:1", "orders"), *ranges, frozenset({"billing"}), EVER)
    part = read_acks(InMemorySources(held), task)
    assert list(part.settlings) == ["billing"]
    assert part.created_ms == {"billing": start}
    early, late = part.settlings["billing"][first], part.settlings["billing"][second]
    assert (early.acked, early.failed, early.dead, early.other, early.gone) == (5, 2, 0, 0, 5)
    assert sum(early.latencies.values()) == 5
    assert percentile(early.latencies, 0.5) == pytest.approx(102, rel=0.02)
    assert (late.acked, late.dead, late.other, late.gone) == (0, 1, 2, 3 + 4 - 8 - 1)


# Figures


@pytest.mark.parametrize("latency", [0, 1, 7, 130, 4_000, 86_400_000])
def test_percentiles_are_accurate_within_one_percent(latency: int) -> None:
    assert percentile({bucket_of(latency): 3}, 0.99) == pytest.approx(latency, rel=0.0101, abs=0.02)


def test_a_percentile_is_the_value_below_which_that_share_lies() -> None:
    latencies = {bucket_of(10): 50, bucket_of(100): 40, bucket_of(1000): 10}
    assert [round(percentile(latencies, share) or 0, -1) for share in (0.5, 0.51, 0.9, 0.91)] == [10, 100, 100, 1000]
    assert percentile({}, 0.5) is None


def test_windows_are_multiples_of_smaller_ones() -> None:
    assert all(larger % smaller == 0 for smaller, larger in pairwise(WINDOWS_MS))
    assert [window_for(span) for span in (0, 120_000, 3_600_000, 86_400_000)] == [1000, 1000, 30_000, 1_800_000]
    assert window_for(1 << 53) == WINDOWS_MS[-1]


def test_empty_windows_are_included() -> None:
    assert times_of([10, 47], 10) == [10, 20, 30, 40]
    assert times_of([], 10) == []


def test_the_backlog_is_counted_back_from_now() -> None:
    assert depths(3, arrived=[5, 0, 4], gone=[0, 3, 3]) == [5, 2, 3]


def gathered(**fields: Any) -> TopicFacts:
    known: dict[str, Any] = {"name": "orders", "partitions": 1, "parts": [], "acks": [], "backlogs": [], "lags": []}
    return TopicFacts(**(known | fields))


def test_events_after_the_reported_time_are_subtracted_from_the_backlog() -> None:
    part = TopicPart(0, {NOON_MS: Throughput(5, 5), NOON_MS + 1000: Throughput(2, 2)}, {}, after=4)
    acks = AcksPart(
        0, {"billing": {NOON_MS + 1000: SettleFigures(acked=3, gone=3)}}, {"billing": NOON_MS}, {"billing": 1}
    )
    known = gathered(parts=[part], acks=[acks], backlogs=[SubscriptionBacklog("billing", 7, 0, 0, 0)])
    [topic] = build_report("x", NOON_MS, [known], 1000).topics
    assert topic.subscriptions[0].depths == [5, 4]


def test_the_backlog_starts_with_the_subscription() -> None:
    part = TopicPart(0, {NOON_MS: Throughput(5, 5), NOON_MS + 1000: Throughput(2, 2)}, {}, after=0)
    acks = AcksPart(0, {"billing": {}}, {"billing": NOON_MS + 1500}, {})
    known = gathered(parts=[part], acks=[acks], backlogs=[SubscriptionBacklog("billing", 2, 0, 0, 0)])
    [topic] = build_report("x", NOON_MS, [known], 1000).topics
    assert topic.subscriptions[0].depths == [None, 2]


def test_a_window_that_is_too_small_is_rejected() -> None:
    part = TopicPart(0, {NOON_MS: Throughput(1, 1), NOON_MS + 86_400_000: Throughput(1, 1)}, {}, 0)
    with pytest.raises(InvalidRequest, match="would have 86401 windows"):
        build_report("x", NOON_MS, [gathered(parts=[part])], 1000)


def test_a_backlog_without_events_is_shown() -> None:
    report = build_report("x", NOON_MS, [gathered(backlogs=[SubscriptionBacklog("billing", 3, 1, 1, 0)])], None)
    page = PageReader(render_report_page(report))
    assert page.tiles["Subscription billing"]["backlog now"] == "3"
    assert report.times_ms == []


def test_the_chart_has_the_biggest_partitions_and_the_table_has_all() -> None:
    parts = [TopicPart(n, {NOON_MS: Throughput(n + 1, 1)}, {}, 0) for n in range(40)]
    text = render_report_page(build_report("x", NOON_MS, [gathered(partitions=40, parts=parts)], None))
    assert text.count('class="bar s0"') == 24
    assert "partition 39: 40" in text
    assert len(PageReader(text).tables["orders", "Messages by partition"]) == 41


def test_long_tables_are_truncated_and_names_are_escaped() -> None:
    part = TopicPart(0, {NOON_MS + 1000 * n: Throughput(1, 1) for n in range(900)}, {b"\x00<b>": Throughput(1, 1)}, 0)
    lags = [GroupPartitionLag("<i>", 0, None, 9, 9)]
    report: Report = build_report("<x>", NOON_MS, [gathered(parts=[part], lags=lags)], 1000)
    text = render_report_page(report)
    page = PageReader(text)
    assert "400 more rows are in the Parquet tables." in text
    assert len(page.tables["orders", "Messages in"]) == 501
    assert page.tables["orders", "Biggest keys"][1] == ["\\x00<b>", "1"]
    assert page.tables["Consumer groups", ""][1] == ["<i>", "0", "-", "9", "9"]
    assert {"b", "i", "x"}.isdisjoint(page.tags)
