"""Compute the rows of brokers, topics, groups and subscriptions from two samples. Plain functions.

A rate is the change between the two samples. Unknown values are None: rates of the first sample and of objects that
were just created or recreated, and values from a broker's metrics if those were not requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from headrace.cli.top_look import Look
from headrace.cli.top_metrics import Samples
from headrace.client.metadata import PartitionView
from headrace.client.subscription_admin import PartitionBacklog
from headrace.model.names import is_internal

Sort = Literal["lag", "rate", "age", "name"]
SORTS: tuple[Sort, ...] = ("lag", "rate", "age", "name")
Row = Mapping[str, Any]

_BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
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


def summarize(seen: Look) -> Summary:
    partitions = [partition for topic in seen.view.topics.values() for partition in topic.partitions]
    troubles = [*seen.troubles]
    if seen.groups_left_out:
        troubles.append(f"{seen.groups_left_out} groups are not shown")
    return Summary(
        brokers=len(seen.view.nodes),
        controller=seen.view.controller_id,
        topics=sum(not is_internal(name) for name in seen.view.topics),
        partitions=len(partitions),
        offline=sum(partition.leader_id < 0 for partition in partitions),
        under_replicated=sum(map(_is_behind, partitions)),
        troubles=troubles,
    )


def tables(seen: Look, before: Look | None, sort: Sort, count_max: int | None) -> list[Table]:
    """Return all four tables, each with at most `count_max` rows."""
    return [
        _table("broker", _BROKER_COLUMNS, broker_rows(seen, before), lambda row: row["broker"], None),
        _table(
            "topic", _TOPIC_COLUMNS, topic_rows(seen, before), _order(sort, "topic", "in_per_s", "in_per_s"), count_max
        ),
        _table(
            "subscription",
            _SUBSCRIPTION_COLUMNS,
            subscription_rows(seen, before),
            _order(sort, "subscription", "backlog", "acks_per_s"),
            count_max,
        ),
        _table("group", _GROUP_COLUMNS, group_rows(seen, before), _order(sort, "group", "lag", "out_per_s"), count_max),
    ]


_BROKER_COLUMNS = ("broker", "address", "leads", "replicas", "cpu", "memory", "connections", "fsync_ms", "loop_lag_ms")
_TOPIC_COLUMNS = ("topic", "partitions", "under_replicated", "in_per_s", "bytes_in_per_s", "bytes_out_per_s")
_SUBSCRIPTION_COLUMNS = ("subscription", "topic", "ready", "leased", "waiting", "dying", "oldest_s", "acks_per_s")
_GROUP_COLUMNS = ("group", "state", "members", "lag", "out_per_s")


def _table(
    kind: str, columns: Sequence[str], rows: Iterable[Row], order: Callable[[Row], Any], count_max: int | None
) -> Table:
    ordered = sorted(rows, key=order)
    return Table(kind, columns, ordered[:count_max], len(ordered))


def _order(sort: Sort, name: str, lag: str, rate: str) -> Callable[[Row], Any]:
    """Sort by value in descending order, then by name; unknown values come last."""
    column = {"lag": lag, "rate": rate, "age": "oldest_s", "name": ""}[sort]
    return lambda row: (-(row.get(column) or 0), row[name])


# Brokers


def broker_rows(seen: Look, before: Look | None) -> list[Row]:
    leads, replicas = Counter[int](), Counter[int]()
    for topic in seen.view.topics.values():
        for partition in topic.partitions:
            leads[partition.leader_id] += 1
            replicas.update(partition.replicas)
    own = {_node_of(samples): address for address, samples in seen.metrics.items()}
    rows: list[Row] = []
    for node_id, node in seen.view.nodes.items():
        row: dict[str, Any] = {
            "broker": node_id,
            "address": str(node.address),
            "leads": leads[node_id],
            "replicas": replicas[node_id],
            "is_controller": node_id == seen.view.controller_id,
        }
        address = own.get(node_id)
        if address is not None:
            now, then = seen.metrics[address], None if before is None else before.metrics.get(address)
            row |= _process_row(now, then, _seconds(seen, before))
        rows.append(row)
    return rows


def _process_row(now: Samples, then: Samples | None, seconds: float) -> dict[str, Any]:
    return {
        "cpu": _rate(now, then, "process_cpu_seconds_total", seconds),
        "memory": now.value("process_resident_memory_bytes"),
        "connections": now.value("kafka_server_socket_server_metrics_connection_count"),
        "fsync_ms": _mean_ms(now, then, "headrace_fsync_seconds"),
        "loop_lag_ms": _mean_ms(now, then, "headrace_loop_lag_seconds"),
    }


def _node_of(samples: Samples) -> int | None:
    return next((int(labels["id"]) for labels, _ in samples.all("kafka_broker_info")), None)


def _rate(now: Samples, then: Samples | None, name: str, seconds: float) -> float | None:
    one, other = now.value(name), None if then is None else then.value(name)
    return None if one is None or other is None or not seconds else max(one - other, 0.0) / seconds


def _mean_ms(now: Samples, then: Samples | None, name: str) -> float | None:
    """Return the mean of the observations between the two samples, or of all if there is only one."""
    total, count = now.value(f"{name}_sum"), now.value(f"{name}_count")
    if total is None or count is None:
        return None
    total -= (then and then.value(f"{name}_sum")) or 0.0
    count -= (then and then.value(f"{name}_count")) or 0.0
    return total / count * 1000 if count > 0 else None


# Topics


def topic_rows(seen: Look, before: Look | None) -> list[Row]:
    ends, ends_before = _per_topic(seen), {} if before is None else _per_topic(before)
    seconds = _seconds(seen, before)
    bytes_in, bytes_out = (_topic_rates(seen, before, name) for name in (_BYTES_IN, _BYTES_OUT))
    return [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "under_replicated": sum(map(_is_behind, topic.partitions)),
            "offline": sum(partition.leader_id < 0 for partition in topic.partitions),
            "end": ends.get(topic.name),
            "in_per_s": _change(ends.get(topic.name), ends_before.get(topic.name), seconds),
            "bytes_in_per_s": bytes_in.get(topic.name),
            "bytes_out_per_s": bytes_out.get(topic.name),
        }
        for topic in seen.view.topics.values()
        if not is_internal(topic.name)
    ]


def _per_topic(seen: Look) -> dict[str, int]:
    ends: dict[str, int] = defaultdict(int)
    for target, end in seen.ends.items():
        ends[target.topic] += end
    return ends


def _topic_rates(seen: Look, before: Look | None, name: str) -> dict[str, float]:
    """Sum the rates of all brokers whose metrics are in both samples."""
    rates: dict[str, float] = defaultdict(float)
    seconds = _seconds(seen, before)
    if before is None or not seconds:
        return rates
    for address, samples in seen.metrics.items():
        if address in before.metrics:
            then = {labels["topic"]: value for labels, value in before.metrics[address].all(name)}
            for labels, value in samples.all(name):
                topic = labels["topic"]
                rates[topic] += max(value - then.get(topic, 0.0), 0.0) / seconds
    return rates


def _is_behind(partition: PartitionView) -> bool:
    return len(partition.in_sync) < len(partition.replicas)


# Groups


def group_rows(seen: Look, before: Look | None) -> list[Row]:
    seconds = _seconds(seen, before)
    rows: list[Row] = []
    for name, group in seen.groups.items():
        then = None if before is None else before.groups.get(name)
        lags = [max(seen.ends[target] - offset, 0) for target, offset in group.commits.items() if target in seen.ends]
        rows.append(
            {
                "group": name,
                "state": group.state,
                "members": group.members,
                "lag": sum(lags) if lags else None,
                "out_per_s": _change(
                    sum(group.commits.values()), None if then is None else sum(then.commits.values()), seconds
                ),
            }
        )
    return rows


# Subscriptions


def subscription_rows(seen: Look, before: Look | None) -> list[Row]:
    now, then = _by_subscription(seen.backlogs), _by_subscription(() if before is None else before.backlogs)
    seconds = _seconds(seen, before)
    rows: list[Row] = []
    for (name, topic), backlogs in now.items():
        backlog, leased, waiting, dying = (
            sum(getattr(one, field) for one in backlogs) for field in ("backlog", "leased", "waiting", "dying")
        )
        oldest = [one.oldest_ms for one in backlogs if one.oldest_ms is not None]
        settled_before = then.get((name, topic))
        rows.append(
            {
                "subscription": name,
                "topic": topic,
                "backlog": backlog,
                "ready": max(backlog - leased - waiting - dying, 0),
                "leased": leased,
                "waiting": waiting,
                "dying": dying,
                "oldest_s": max(seen.now_ms - min(oldest), 0) / 1000 if oldest else None,
                "acks_per_s": _change(
                    _settled(backlogs), None if settled_before is None else _settled(settled_before), seconds
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


def _seconds(seen: Look, before: Look | None) -> float:
    return 0.0 if before is None else seen.at - before.at


def _change(now: int | None, then: int | None, seconds: float) -> float | None:
    """Return the change per second; None if the value decreased, because of a seek or a recreation."""
    if now is None or then is None or seconds <= 0:
        return None
    return max(now - then, 0) / seconds
