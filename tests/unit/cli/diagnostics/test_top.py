"""`headrace top`: rates between two samples, their display, and that it only reads."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from errno import ECONNREFUSED
from typing import Any, NoReturn
from urllib.error import URLError

import pytest
from tests.unit.client.simulated_server import client, start_broker

from headrace.cli.diagnostics.top import TopMonitor, show_json
from headrace.cli.diagnostics.top_view import (
    ClusterSample,
    GroupSample,
    MetricsPage,
    Sort,
    Summary,
    Table,
    age,
    frame,
    sample_cluster,
    scrape,
    screen_lines,
    size,
    summarize,
    table_lines,
    tables,
)
from headrace.cli.main import main
from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.subscription_admin import START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.connections.address import Address
from headrace.client.groups.offsets import Commit, commit
from headrace.client.metadata import ClusterView, PartitionView, TopicPartition, TopicView
from headrace.client.produce.producer import Producer
from headrace.model.errors import HeadraceError
from headrace.model.ids import ZERO_ID
from headrace.testkit.world import World

NOW_MS = 1_800_000_000_000


def topic(name: str, *in_sync: tuple[int, ...], leader: int = 1) -> TopicView:
    """Each partition has two replicas."""
    partitions = (PartitionView(name, at, leader, 0, (1, 2), members) for at, members in enumerate(in_sync))
    return TopicView(name, ZERO_ID, False, tuple(partitions))


def sample(at: float = 0.0, *topics: TopicView, **more: Any) -> ClusterSample:
    nodes = {node_id: Address(f"host{node_id}", 9092) for node_id in (1, 2)}
    view = ClusterView("c", 1, nodes, {one.name: one for one in topics})
    return ClusterSample(at, NOW_MS, view, **more)


def backlog(subscription: str, topic: str, end: int, count: int, **more: Any) -> PartitionBacklog:
    counts = {"leased": 0, "waiting": 0, "dying": 0, "oldest_ms": None} | more
    return PartitionBacklog(subscription, TopicPartition(topic, 0), end - count, end, count, **counts)


def rows_of(
    kind: str, now: ClusterSample, before: ClusterSample | None, sort: Sort = "lag", count: int | None = None
) -> Table:
    (table,) = [table for table in tables(now, before, sort, count) if table.kind == kind]
    return table


def column(table: Table, name: str) -> list[Any]:
    return [row.get(name) for row in table.rows]


def test_rates_are_the_change_between_two_samples() -> None:
    orders = topic("orders", (1, 2), (1, 2))
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    before = sample(10.0, orders, ends={first: 100, second: 50})
    now = sample(12.0, orders, ends={first: 140, second: 60})
    (row,) = rows_of("topic", now, before).rows
    assert (row["in_per_s"], row["end"], row["partitions"]) == (25.0, 200, 2)
    assert rows_of("topic", now, None).rows[0]["in_per_s"] is None


def test_a_recreated_topic_has_no_negative_rate() -> None:
    target = TopicPartition("orders", 0)
    before, now = (
        sample(1.0, topic("orders", (1,)), ends={target: 100}),
        sample(2.0, topic("orders", (1,)), ends={target: 5}),
    )
    assert column(rows_of("topic", now, before), "in_per_s") == [0.0]


def test_under_replicated_and_offline_partitions_are_counted() -> None:
    now = sample(0.0, topic("a", (1, 2), (1,)), topic("b", (1, 2), leader=-1), topic("__acks.a", (1,)))
    summary = summarize(now)
    assert (summary.brokers, summary.topics, summary.partitions) == (2, 2, 4)
    assert (summary.under_replicated, summary.offline) == (2, 1)
    assert column(rows_of("topic", now, None, "name"), "under_replicated") == [1, 0]
    assert column(rows_of("broker", now, None), "leads") == [3, 0]
    assert column(rows_of("broker", now, None), "replicas") == [4, 4]


def test_subscriptions_are_summed_over_their_partitions() -> None:
    before = sample(0.0, backlogs=[backlog("billing", "orders", 100, 60), backlog("billing", "orders", 10, 10)])
    parts = [
        backlog("billing", "orders", 120, 50, leased=5, oldest_ms=NOW_MS - 1000),
        backlog("billing", "orders", 10, 9, waiting=2, dying=1, oldest_ms=NOW_MS - 90_000),
        backlog("audit", "orders", 10, 0),
    ]
    table = rows_of("subscription", sample(10.0, backlogs=parts), before)
    billing, audit = table.rows
    assert (billing["backlog"], billing["ready"], billing["leased"], billing["waiting"]) == (59, 51, 5, 2)
    assert billing["dying"] == 1
    assert billing["oldest_s"] == 90
    assert billing["acks_per_s"] == pytest.approx((70 + 1 - 40) / 10)
    assert (audit["oldest_s"], audit["acks_per_s"]) == (None, None)


def test_groups_have_lag_where_the_end_offset_is_known() -> None:
    target, gone = TopicPartition("orders", 0), TopicPartition("gone", 0)
    before = sample(0.0, ends={target: 90}, groups={"g": GroupSample("Stable", 2, {target: 10})})
    now = sample(4.0, ends={target: 100}, groups={"g": GroupSample("Stable", 2, {target: 30, gone: 7})})
    (row,) = rows_of("group", now, before).rows
    assert (row["lag"], row["members"], row["out_per_s"]) == (70, 2, pytest.approx(27 / 4))


@pytest.mark.parametrize(
    ("sort", "order"),
    [("lag", ["b", "a", "c"]), ("rate", ["c", "a", "b"]), ("age", ["a", "c", "b"]), ("name", ["a", "b", "c"])],
)
def test_rows_are_sorted_in_descending_order(sort: Sort, order: list[str]) -> None:
    before = sample(0.0, backlogs=[backlog("a", "t", 100, 50), backlog("b", "t", 100, 100), backlog("c", "t", 100, 90)])
    now = sample(
        1.0,
        backlogs=[
            backlog("a", "t", 100, 40, oldest_ms=NOW_MS - 5000),
            backlog("b", "t", 100, 100),
            backlog("c", "t", 100, 10, oldest_ms=NOW_MS - 1000),
        ],
    )
    assert column(rows_of("subscription", now, before, sort), "subscription") == order


def test_only_the_first_rows_are_shown_but_all_are_counted() -> None:
    now = sample(0.0, *(topic(f"t{number:04}", (1, 2)) for number in range(3000)))
    table = rows_of("topic", now, None, count=20)
    assert (len(table.rows), table.total) == (20, 3000)
    assert "TOPIC (20 of 3000)" in table_lines(table)[0]
    lines = screen_lines(summarize(now), tables(now, None, "lag", None), "lag", 24)
    assert len(lines) <= 24


PAGE = """# HELP kafka_broker_info x
# TYPE kafka_broker_info gauge
kafka_broker_info{id="1",address="host1:9092"} 1
process_cpu_seconds_total %s
process_resident_memory_bytes 52000000
headrace_fsync_seconds_sum %s
headrace_fsync_seconds_count %s
kafka_server_brokertopicmetrics_bytesout_total{topic="orders"} %s
kafka_consumergroup_lag{consumergroup="a \\"b\\\\ \\n",topic="t",partition="0"} 3
"""


def test_metrics_add_what_the_wire_protocol_does_not_provide() -> None:
    orders = topic("orders", (1, 2))
    before = sample(0.0, orders, metrics={"h:1": MetricsPage(PAGE % (10.0, 1.0, 100, 1000))})
    now = sample(2.0, orders, metrics={"h:1": MetricsPage(PAGE % (11.0, 1.5, 200, 5000))})
    first, second = rows_of("broker", now, before).rows
    assert (first["cpu"], first["memory"]) == (0.5, 52_000_000)
    assert first["fsync_ms"] == pytest.approx(5.0)
    assert first.get("loop_lag_ms") is None
    assert "cpu" not in second
    assert column(rows_of("topic", now, before), "bytes_out_per_s") == [2000.0]


def test_labels_are_unescaped() -> None:
    ((labels, value),) = MetricsPage(PAGE % (1, 1, 1, 1)).all("kafka_consumergroup_lag")
    assert labels == {"consumergroup": 'a "b\\ \n', "topic": "t", "partition": "0"}
    assert value == 3


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_screen_fits_the_terminal() -> None:
    orders = topic("orders" * 20, *[(1, 2)] * 3)
    now = sample(
        2.0,
        orders,
        ends={TopicPartition(orders.name, 0): 12_345},
        backlogs=[backlog(f"s{number}", "orders", 100, number) for number in range(30)],
        groups={"g\x1b[2J": GroupSample("Stable", 1, {})},
        troubles=["offsets: no leader"],
    )
    for height in (1, 5, 10, 24, 80):
        drawn = frame(summarize(now), tables(now, None, "lag", None), "lag", 60, height)
        lines = plain(drawn).split("\n")
        assert len(lines) <= max(height, 2)
        assert all(len(line) <= 60 for line in lines)
    assert "2J" in drawn
    assert "\x1b[2J" not in drawn, "a group's name must not speak to the terminal"
    text = plain(drawn)
    assert "! offsets: no leader" in text
    assert "1*" in text, "the controller"
    assert "\N{HORIZONTAL ELLIPSIS}" in text


def test_numbers_are_formatted_for_reading() -> None:
    assert [size(count) for count in (0, 999, 1500, 250_000, 52_000_000, 3.2e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "250 kB",
        "52.0 MB",
        "3.2 TB",
    ]
    assert [age(seconds) for seconds in (0.25, 59.9, 61, 3599, 3600 * 5 + 60 * 7, 86_400 * 3)] == [
        "0.2s",
        "59.9s",
        "1m01s",
        "59m59s",
        "5h07m",
        "3d",
    ]


# Against a broker


class TopCommandRunner:
    """A broker with the topic orders, a subscription and a group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = World(seed=1)
        self._capsys = capsys
        monkeypatch.setattr("headrace.cli.diagnostics.top.with_cluster", self.with_cluster)
        self.world.run(self._prepare())

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        assert main(["top", "--once", *arguments]) == 0
        self.stdout, self.stderr = self._capsys.readouterr()
        return [json.loads(line) for line in self.stdout.splitlines()] if "table" not in arguments else []

    def with_cluster(self, _server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            async with client(self.world) as cluster:
                return await work(cluster)

        return self.world.run(scenario())

    async def _prepare(self) -> None:
        await start_broker(self.world)
        async with client(self.world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            await SubscriptionAdmin(cluster).create("orders", "billing", Position(START))
            async with Producer(cluster) as producer:
                for value in (b"a", b"b", b"c"):
                    await producer.publish("orders", value, partition=0)
            await commit(cluster, "readers", {TopicPartition("orders", 0): Commit(1)})


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[TopCommandRunner]:
    harness = TopCommandRunner(monkeypatch, capsys)
    yield harness
    harness.world.close()


def test_one_sample_is_printed_as_json(harness: TopCommandRunner) -> None:
    rows = harness.run()
    by_kind = {row["kind"]: row for row in rows}
    assert set(by_kind) == {"cluster", "broker", "topic", "subscription", "group"}
    assert by_kind["cluster"]["under_replicated"] == 0
    assert (by_kind["topic"]["topic"], by_kind["topic"]["end"], by_kind["topic"]["in_per_s"]) == ("orders", 3, 0.0)
    assert (by_kind["subscription"]["backlog"], by_kind["subscription"]["ready"]) == (3, 3)
    assert (by_kind["group"]["group"], by_kind["group"]["lag"], by_kind["group"]["members"]) == ("readers", 2, 0)
    assert len({row["at_ms"] for row in rows}) == 1


def test_one_sample_is_printed_as_a_table(harness: TopCommandRunner) -> None:
    harness.run("-o", "table")
    assert re.search(r"^TOPIC +PARTITIONS", harness.stdout, re.MULTILINE)
    assert re.search(r"^billing +orders +3 ", harness.stdout, re.MULTILINE)
    assert re.search(r"^readers +\S+ +0 +2 ", harness.stdout, re.MULTILINE)


def test_top_changes_nothing(harness: TopCommandRunner) -> None:
    harness.run()

    async def groups(cluster: Cluster) -> list[str]:
        return [group.group for group in await GroupAdmin(cluster).list()]

    assert harness.with_cluster("", groups) == ["readers"]
    assert harness.run()[-1]["lag"] == 2


def test_unreachable_metrics_are_a_warning_not_an_error(
    harness: TopCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scrape(_address: str) -> MetricsPage:
        raise ConnectionRefusedError(ECONNREFUSED, "connection refused")

    monkeypatch.setattr("headrace.cli.diagnostics.top_view.scrape", scrape)
    assert harness.run("--http", "127.0.0.1:1")[0]["troubles"] == ["metrics of 127.0.0.1:1: connection refused"]


async def test_an_unreachable_address_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*_arguments: object, **_options: object) -> NoReturn:
        raise URLError(ConnectionRefusedError(ECONNREFUSED, "Connection refused"))

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(ConnectionRefusedError):
        await scrape("127.0.0.1:1")


class RecordingOutput:
    """Records the displayed samples, and presses keys."""

    def __init__(self, *keys: str) -> None:
        self.shown: list[tuple[ClusterSample, Sort, Summary]] = []
        self._keys = list(keys)

    def show(self, sample: ClusterSample, summary: Summary, tables: Any, sort: Sort) -> None:
        self.shown.append((sample, sort, summary))
        if self._keys:
            asyncio.get_running_loop().call_later(0.5, self.view.on_key, self._keys.pop(0))

    def watch(self, view: TopMonitor) -> None:
        self.view = view


def test_keys_change_the_sort_order_immediately_and_quit(harness: TopCommandRunner) -> None:
    kept = RecordingOutput("s", "x", "q")

    async def work(cluster: Cluster) -> None:
        view = TopMonitor(cluster, (), "lag", 20)
        kept.watch(view)
        await view.run(kept.show, 2.0, once=False)

    harness.with_cluster("", work)
    assert [sort for _, sort, _ in kept.shown] == ["lag", "rate", "rate"]
    assert len({id(sample) for sample, _, _ in kept.shown}) == 1, "without another look"


def test_sampling_continues_after_the_cluster_was_unreachable(
    harness: TopCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[HeadraceError | None] = [None, HeadraceError("no broker responds"), None]

    async def unsteady(cluster: Cluster, http: Any = ()) -> ClusterSample:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return await sample_cluster(cluster, http)

    monkeypatch.setattr("headrace.cli.diagnostics.top.sample_cluster", unsteady)
    kept = RecordingOutput()

    async def work(cluster: Cluster) -> None:
        view = TopMonitor(cluster, (), "lag", 20)
        kept.watch(view)
        asyncio.get_running_loop().call_later(5.0, view.on_key, "q")
        await view.run(kept.show, 2.0, once=False)

    harness.with_cluster("", work)
    assert [summary.troubles for _, _, summary in kept.shown] == [
        [],
        ["no broker responds; the data shown is stale"],
        [],
    ]


def test_json_rows_state_their_kind(capsys: pytest.CaptureFixture[str]) -> None:
    now = sample(0.0, topic("orders", (1, 2)))
    show_json(now, summarize(now), tables(now, None, "lag", None), "lag")
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["cluster", "broker", "broker", "topic"]
