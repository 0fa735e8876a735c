"""The data and the display of `headrace top`: sample the cluster, compute rows from two samples, draw them.

- A sample is taken over the wire protocol and, if HTTP addresses are given, from the `/metrics` pages of brokers.
- A failure of one part does not fail the sample: the part is missing, and `troubles` contains the reason.
- A rate is the change between two samples. Unknown values are None: rates of the first sample and of objects that were
  just created or recreated, and values from a broker's metrics if those were not requested.
- The screen has a summary line and one table per kind of object, truncated to the terminal.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import click

from headrace.cli.output import aligned, shortened
from headrace.client.admin.group_admin import GroupAdmin, GroupListing
from headrace.client.admin.subscription_admin import PartitionBacklog, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import VersionMismatch
from headrace.client.groups.offsets import END, committed, find_offsets
from headrace.client.metadata import ClusterView, PartitionView, TopicPartition
from headrace.model.errors import HeadraceError
from headrace.model.names import is_internal
from headrace.model.safe_text import escaped

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_SCRAPE_SECONDS = 2.0

Labels = Mapping[str, str]


class MetricsPage:
    """The samples of a page in the Prometheus text format, by name."""

    def __init__(self, text: str) -> None:
        self._by_name: dict[str, list[tuple[Labels, float]]] = {}
        for line in text.splitlines():
            match = _SAMPLE.fullmatch(line)
            if match is not None:
                labels = {name: _unescaped(value) for name, value in _LABEL.findall(match[2] or "")}
                self._by_name.setdefault(match[1], []).append((labels, float(match[3])))

    def all(self, name: str) -> Iterator[tuple[Labels, float]]:
        return iter(self._by_name.get(name, ()))

    def value(self, name: str) -> float | None:
        """Return the value of a family without labels, or the sum over all labels."""
        found = self._by_name.get(name)
        return None if found is None else sum(value for _, value in found)


_EMPTY_PAGE = MetricsPage("")


async def scrape(address: str) -> MetricsPage:
    """Fetch the metrics of a broker; raise OSError if it is unreachable, ValueError if the page is invalid."""
    return MetricsPage(await asyncio.to_thread(_get, f"http://{address}/metrics"))


def _get(url: str) -> str:
    from urllib.error import URLError  # imported only if metrics are requested
    from urllib.request import Request, urlopen

    token = os.environ.get("HEADRACE_TOKEN")
    request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=_SCRAPE_SECONDS) as response:
            return str(response.read().decode())
    except URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None


def _unescaped(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], value)


GROUPS_MAX = 200  # the maximum number of groups to describe, which takes two requests each
_CONCURRENT_REQUESTS = 16
_TIMEOUT_SECONDS = 3.0
_SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupSample:
    state: str
    members: int
    commits: Mapping[TopicPartition, int]


@dataclass(slots=True)
class ClusterSample:
    """`at` is a monotonic time in seconds, `now_ms` the wall clock."""

    at: float
    now_ms: int
    view: ClusterView = field(default_factory=ClusterView)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: dict[str, GroupSample] = field(default_factory=dict)
    skipped_groups: int = 0
    backlogs: Sequence[PartitionBacklog] = ()
    metrics: dict[str, MetricsPage] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


async def sample_cluster(cluster: Cluster, http: Sequence[str] = ()) -> ClusterSample:
    """Take a sample; raise only if the cluster is not reachable at all."""
    view = await cluster.call_with_retries(cluster.refresh, deadline_seconds=_TIMEOUT_SECONDS)
    sample = ClusterSample(cluster.clock.monotonic(), cluster.clock.now_ms(), view)
    parts = {
        "offsets": _collect_end_offsets(cluster, sample),
        "groups": _collect_groups(cluster, sample),
        "subscriptions": _collect_subscriptions(cluster, sample),
        **{f"metrics of {address}": _collect_metrics(address, sample) for address in http},
    }
    async with asyncio.TaskGroup() as tasks:
        for name, part in parts.items():
            tasks.create_task(_collect(name, part, sample))
    return sample


async def _collect(name: str, part: Coroutine[Any, Any, None], sample: ClusterSample) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await part
    except TimeoutError:
        sample.troubles.append(f"{name}: no response within {_TIMEOUT_SECONDS:.0f} s")
    except VersionMismatch:
        return  # a broker of another kind, which does not support the request
    except OSError as error:
        sample.troubles.append(f"{name}: {error.strerror or error}")
    except (HeadraceError, ValueError) as error:
        sample.troubles.append(f"{name}: {error.message if isinstance(error, HeadraceError) else error}")


async def _collect_end_offsets(cluster: Cluster, sample: ClusterSample) -> None:
    targets = [
        TopicPartition(topic.name, partition.partition)
        for topic in sample.view.topics.values()
        if not is_internal(topic.name)
        for partition in topic.partitions
        if partition.leader_id >= 0
    ]
    found = await find_offsets(cluster, dict.fromkeys(targets, END))
    sample.ends = {target: one.offset for target, one in found.items()}


async def _collect_groups(cluster: Cluster, sample: ClusterSample) -> None:
    admin = GroupAdmin(cluster)
    # The backlog of share groups is shown with their subscriptions.
    listed = [group for group in await admin.list() if group.kind.lower() != _SHARE]
    sample.skipped_groups = max(len(listed) - GROUPS_MAX, 0)
    slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def describe(group: GroupListing) -> None:
        async with slots:
            try:
                members = (await admin.describe(group.group)).members
                commits = await committed(cluster, group.group)
            except HeadraceError:
                return  # the group was deleted, or its coordinator is moving
        offsets = {target: commit.offset for target, commit in commits.items()}
        sample.groups[group.group] = GroupSample(group.state, len(members), offsets)

    async with asyncio.TaskGroup() as tasks:
        for group in listed[:GROUPS_MAX]:
            tasks.create_task(describe(group))


async def _collect_subscriptions(cluster: Cluster, sample: ClusterSample) -> None:
    sample.backlogs = await SubscriptionAdmin(cluster).list()


async def _collect_metrics(address: str, sample: ClusterSample) -> None:
    sample.metrics[address] = await scrape(address)


Sort = Literal["lag", "rate", "age", "name"]
SORTS: tuple[Sort, ...] = ("lag", "rate", "age", "name")
Row = Mapping[str, Any]

_BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
_CPU_SECONDS = "process_cpu_seconds_total"
_BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


class Table(NamedTuple):
    """The displayed rows, and the total number."""

    kind: str
    columns: Sequence[str]
    rows: Sequence[Row]
    total: int


class Summary(NamedTuple):
    brokers: int
    controller: int
    topics: int
    partitions: int
    offline: int
    under_replicated: int
    troubles: Sequence[str]


def summarize(sample: ClusterSample) -> Summary:
    partitions = [partition for topic in sample.view.topics.values() for partition in topic.partitions]
    troubles = [*sample.troubles]
    if sample.skipped_groups:
        troubles.append(f"{sample.skipped_groups} groups are not shown")
    return Summary(
        brokers=len(sample.view.nodes),
        controller=sample.view.controller_id,
        topics=sum(not is_internal(name) for name in sample.view.topics),
        partitions=len(partitions),
        offline=sum(partition.leader_id < 0 for partition in partitions),
        under_replicated=sum(map(_is_behind, partitions)),
        troubles=troubles,
    )


def tables(sample: ClusterSample, previous: ClusterSample | None, sort: Sort, count_max: int | None) -> list[Table]:
    """Return all four tables; those of topics, subscriptions and groups have at most `count_max` rows."""
    # Without a previous sample, compare with an empty one of the same time, which results in unknown rates.
    previous = previous or ClusterSample(sample.at, sample.now_ms)
    brokers = sorted(broker_rows(sample, previous), key=lambda row: row["broker"])
    found = [Table("broker", _BROKER_COLUMNS, brokers, len(brokers))]
    for kind, columns, rows, lag, rate in (
        ("topic", _TOPIC_COLUMNS, topic_rows(sample, previous), "in_per_s", "in_per_s"),
        ("subscription", _SUBSCRIPTION_COLUMNS, subscription_rows(sample, previous), "backlog", "acks_per_s"),
        ("group", _GROUP_COLUMNS, group_rows(sample, previous), "lag", "out_per_s"),
    ):
        column = {"lag": lag, "rate": rate, "age": "oldest_s", "name": ""}[sort]
        rows.sort(key=lambda row: (-(row.get(column) or 0), row[kind]))
        found.append(Table(kind, columns, rows[:count_max], len(rows)))
    return found


_BROKER_COLUMNS = ("broker", "address", "leads", "replicas", "cpu", "memory", "connections", "fsync_ms", "loop_lag_ms")
_TOPIC_COLUMNS = ("topic", "partitions", "under_replicated", "in_per_s", "bytes_in_per_s", "bytes_out_per_s")
_SUBSCRIPTION_COLUMNS = ("subscription", "topic", "ready", "leased", "waiting", "dying", "oldest_s", "acks_per_s")
_GROUP_COLUMNS = ("group", "state", "members", "lag", "out_per_s")


# Brokers


def broker_rows(sample: ClusterSample, previous: ClusterSample) -> list[Row]:
    leads, replicas = Counter[int](), Counter[int]()
    for topic in sample.view.topics.values():
        for partition in topic.partitions:
            leads[partition.leader_id] += 1
            replicas.update(partition.replicas)
    own = {_node_of(samples): address for address, samples in sample.metrics.items()}
    rows: list[Row] = []
    for node_id, advertised in sample.view.nodes.items():
        row: dict[str, Any] = {
            "broker": node_id,
            "address": str(advertised),
            "leads": leads[node_id],
            "replicas": replicas[node_id],
            "is_controller": node_id == sample.view.controller_id,
        }
        address = own.get(node_id)
        if address is not None:
            page, before = sample.metrics[address], previous.metrics.get(address, _EMPTY_PAGE)
            row |= {
                "cpu": _change(page.value(_CPU_SECONDS), before.value(_CPU_SECONDS), sample.at - previous.at),
                "memory": page.value("process_resident_memory_bytes"),
                "connections": page.value("kafka_server_socket_server_metrics_connection_count"),
                "fsync_ms": _mean_ms(page, before, "headrace_fsync_seconds"),
                "loop_lag_ms": _mean_ms(page, before, "headrace_loop_lag_seconds"),
            }
        rows.append(row)
    return rows


def _node_of(samples: MetricsPage) -> int | None:
    return next((int(labels["id"]) for labels, _ in samples.all("kafka_broker_info")), None)


def _mean_ms(current: MetricsPage, before: MetricsPage, name: str) -> float | None:
    """Return the mean of the observations between the two samples, or of all if there is only one."""
    total, count = current.value(f"{name}_sum"), current.value(f"{name}_count")
    if total is None or count is None:
        return None
    total -= before.value(f"{name}_sum") or 0.0
    count -= before.value(f"{name}_count") or 0.0
    return total / count * 1000 if count > 0 else None


# Topics


def topic_rows(sample: ClusterSample, previous: ClusterSample) -> list[Row]:
    ends, ends_before = _per_topic(sample), _per_topic(previous)
    bytes_in, bytes_out = (_topic_rates(sample, previous, name) for name in (_BYTES_IN, _BYTES_OUT))
    return [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "under_replicated": sum(map(_is_behind, topic.partitions)),
            "offline": sum(partition.leader_id < 0 for partition in topic.partitions),
            "end": ends.get(topic.name),
            "in_per_s": _change(ends.get(topic.name), ends_before.get(topic.name), sample.at - previous.at),
            "bytes_in_per_s": bytes_in.get(topic.name),
            "bytes_out_per_s": bytes_out.get(topic.name),
        }
        for topic in sample.view.topics.values()
        if not is_internal(topic.name)
    ]


def _per_topic(sample: ClusterSample) -> dict[str, int]:
    ends: dict[str, int] = defaultdict(int)
    for target, end in sample.ends.items():
        ends[target.topic] += end
    return ends


def _topic_rates(sample: ClusterSample, previous: ClusterSample, name: str) -> dict[str, float]:
    """Sum the rates of all brokers whose metrics are in both samples."""
    rates: dict[str, float] = defaultdict(float)
    seconds = sample.at - previous.at
    for address, samples in sample.metrics.items():
        if address in previous.metrics and seconds:
            before = {labels["topic"]: value for labels, value in previous.metrics[address].all(name)}
            for labels, value in samples.all(name):
                topic = labels["topic"]
                rates[topic] += max(value - before.get(topic, 0.0), 0.0) / seconds
    return rates


def _is_behind(partition: PartitionView) -> bool:
    return len(partition.in_sync) < len(partition.replicas)


# Groups


def group_rows(sample: ClusterSample, previous: ClusterSample) -> list[Row]:
    rows: list[Row] = []
    for name, group in sample.groups.items():
        before = previous.groups.get(name)
        lags = [
            max(sample.ends[target] - offset, 0) for target, offset in group.commits.items() if target in sample.ends
        ]
        rows.append(
            {
                "group": name,
                "state": group.state,
                "members": group.members,
                "lag": sum(lags) if lags else None,
                "out_per_s": _change(
                    sum(group.commits.values()),
                    None if before is None else sum(before.commits.values()),
                    sample.at - previous.at,
                ),
            }
        )
    return rows


# Subscriptions


def subscription_rows(sample: ClusterSample, previous: ClusterSample) -> list[Row]:
    current = _by_subscription(sample.backlogs)
    before = _by_subscription(previous.backlogs)
    rows: list[Row] = []
    for (name, topic), backlogs in current.items():
        backlog, leased, waiting, dying = (
            sum(getattr(one, field) for one in backlogs) for field in ("backlog", "leased", "waiting", "dying")
        )
        oldest = [one.oldest_ms for one in backlogs if one.oldest_ms is not None]
        backlogs_before = before.get((name, topic))
        rows.append(
            {
                "subscription": name,
                "topic": topic,
                "backlog": backlog,
                "ready": max(backlog - leased - waiting - dying, 0),
                "leased": leased,
                "waiting": waiting,
                "dying": dying,
                "oldest_s": max(sample.now_ms - min(oldest), 0) / 1000 if oldest else None,
                "acks_per_s": _change(
                    _settled(backlogs),
                    None if backlogs_before is None else _settled(backlogs_before),
                    sample.at - previous.at,
                ),
            }
        )
    return rows


def _by_subscription(backlogs: Iterable[PartitionBacklog]) -> dict[tuple[str, str], list[PartitionBacklog]]:
    found: dict[tuple[str, str], list[PartitionBacklog]] = defaultdict(list)
    for one in backlogs:
        found[one.subscription, one.target.topic].append(one)
    return found


def _settled(backlogs: Iterable[PartitionBacklog]) -> int:
    """Count the settled messages: acked in most cases, else filtered, expired or dead-lettered."""
    return sum(one.end - one.backlog for one in backlogs)


def _change(current: float | None, previous: float | None, seconds: float) -> float | None:
    """Return the change per second; None if the value decreased, because of a seek or a recreation."""
    if current is None or previous is None or seconds <= 0:
        return None
    return max(current - previous, 0) / seconds


_CLEAR_LINE, _HOME, _CLEAR_BELOW = "\x1b[K", "\x1b[H", "\x1b[J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Switch to the alternate screen without a cursor, and back."""

_HEADINGS = {
    "under_replicated": "BEHIND",
    "in_per_s": "IN/S",
    "out_per_s": "OUT/S",
    "acks_per_s": "ACKS/S",
    "bytes_in_per_s": "BYTES IN/S",
    "bytes_out_per_s": "BYTES OUT/S",
    "oldest_s": "OLDEST",
    "fsync_ms": "FSYNC MS",
    "loop_lag_ms": "LAG MS",
}
_NAME_LENGTH_MAX = 40
_LINES_AROUND = 2  # per table: its heading and an empty line after it
_WORDS = frozenset({"address", "group", "state", "subscription", "topic"})


class Line(NamedTuple):
    text: str
    is_heading: bool = False


def frame(summary: Summary, tables: Sequence[Table], sort: Sort, width: int, height: int) -> str:
    """Return the complete screen, which overwrites the previous one."""
    lines = screen_lines(summary, tables, sort, height)
    drawn = (click.style(text[:width], bold=is_heading or None) + _CLEAR_LINE for text, is_heading in lines)
    return _HOME + "\n".join(drawn) + _CLEAR_BELOW


def screen_lines(summary: Summary, tables: Sequence[Table], sort: Sort, height: int) -> list[Line]:
    """Return at most `height` lines. Each table gets a share of them; tables use the unneeded lines of others."""
    lines = [Line(headline(summary)), *(Line(f"! {escaped(trouble)}") for trouble in summary.troubles[:2])]
    shown = [table for table in tables if table.rows]
    left = height - len(lines) - 2 - _LINES_AROUND * len(shown)
    for position, table in enumerate(sorted(shown, key=lambda table: len(table.rows))):
        share = max(left // (len(shown) - position), 1)
        count = min(len(table.rows), share)
        left -= count
        shown[shown.index(table)] = table._replace(rows=table.rows[:count])
    for table in shown:
        heading, *rows = table_lines(table)
        lines += [Line(""), Line(heading, is_heading=True), *map(Line, rows)]
    lines = lines[: max(height - 1, 1)]
    return [*lines, Line(f"q: quit, s: change the sort order (now: {sort})")]


def headline(summary: Summary) -> str:
    return (
        f"{summary.brokers} brokers (controller {summary.controller}), {summary.topics} topics, "
        f"{summary.partitions} partitions, {summary.under_replicated} under-replicated, {summary.offline} offline"
    )


def table_lines(table: Table) -> list[str]:
    columns = [column for column in table.columns if any(row.get(column) is not None for row in table.rows)]
    cells = [[_text(column, row) for column in columns] for row in table.rows]
    headings = [_HEADINGS.get(column, column.upper()) for column in columns]
    if table.total > len(table.rows):
        headings[0] += f" ({len(table.rows)} of {table.total})"
    return aligned([headings, *cells], [column not in _WORDS for column in columns])


def _text(column: str, row: Row) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    if column == "broker" and row.get("is_controller"):
        return f"{value}*"
    if isinstance(value, str):
        return shortened(value, _NAME_LENGTH_MAX)
    return _number(column, value)


def _number(column: str, value: Any) -> str:
    if column == "cpu":
        return f"{value:.0%}"
    if column == "memory" or column.startswith("bytes_"):
        return size(value)
    if column == "oldest_s":
        return age(value)
    if column.endswith(("_ms", "_per_s")):
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,.0f}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours < 1:
        return f"{minutes}m{int(seconds) % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if hours < 48 else f"{hours // 24}d"
