"""From the sums of tasks to the figures of a report: per topic, per subscription, over the same windows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.model.errors import InvalidRequest
from headrace.pipeline.report_tasks import AcksPart, TopicPart, biggest
from headrace.pipeline.report_windows import Settling, Throughput, depths, percentile, times_of, window_for, window_of

KEYS_SHOWN = 10
WINDOWS_MAX = 10_000


class Lag(msgspec.Struct, frozen=True):
    """How far a consumer group is behind in a partition; None: it has committed nothing there."""

    group: str
    partition: int
    committed: int | None
    end: int
    lag: int


class Backlog(msgspec.Struct, frozen=True):
    """How a subscription stands now in all partitions of a topic."""

    subscription: str
    backlog: int
    leased: int
    waiting: int
    dying: int


class SubscriptionFigures(msgspec.Struct, frozen=True):
    """Per window: what happened, and how deep the queue was at the end of it; None before it was created."""

    name: str
    now: Backlog
    settlings: Sequence[Settling]
    depths: Sequence[int | None]
    total: Settling

    def percentiles(self, share: float) -> list[float | None]:
        return [percentile(one.latencies, share) for one in self.settlings]


class TopicFigures(msgspec.Struct, frozen=True):
    name: str
    partitions: Mapping[int, Throughput]
    windows: Sequence[Throughput]
    total: Throughput
    keys: Sequence[tuple[str, Throughput]]
    subscriptions: Sequence[SubscriptionFigures]
    lags: Sequence[Lag]


class Gathered(msgspec.Struct, frozen=True):
    """All that is known of a topic before it is put together."""

    name: str
    partitions: int
    parts: Sequence[TopicPart]
    acks: Sequence[AcksPart]
    backlogs: Sequence[Backlog]
    lags: Sequence[Lag]


class Report(msgspec.Struct, frozen=True):
    """`times_ms` are the starts of the windows."""

    title: str
    made_ms: int
    times_ms: Sequence[int]
    window_ms: int
    topics: Sequence[TopicFigures]


def put_together(title: str, made_ms: int, gathered: Sequence[Gathered], window_ms: int | None) -> Report:
    """With the window that is asked for, or one that suits the time that there are figures for."""
    starts = sorted({start for topic in gathered for start in _starts(topic)})
    if window_ms is None:
        window_ms = window_for(starts[-1] - starts[0] if starts else 0)
    if starts and (count := (starts[-1] - starts[0]) // window_ms + 1) > WINDOWS_MAX:
        raise InvalidRequest(
            f"between the first message and the last there would be {count} windows of {window_ms} ms, and at most "
            f"{WINDOWS_MAX} can be shown; choose a larger window, or a time with since and until"
        )
    times_ms = times_of(starts, window_ms)
    return Report(title, made_ms, times_ms, window_ms, [_topic(one, times_ms, window_ms) for one in gathered])


def _starts(topic: Gathered) -> Iterable[int]:
    for part in topic.parts:
        yield from part.windows
    for acks in topic.acks:
        for windows in acks.settlings.values():
            yield from windows


def _topic(gathered: Gathered, times_ms: Sequence[int], window_ms: int) -> TopicFigures:
    windows: dict[int, Throughput] = defaultdict(Throughput)
    partitions = {partition: Throughput() for partition in range(gathered.partitions)}
    keys: dict[bytes | None, Throughput] = defaultdict(Throughput)
    total = Throughput()
    for part in gathered.parts:
        for start, one in part.windows.items():
            windows[window_of(start, window_ms)].add(one)
            partitions[part.partition].add(one)
            total.add(one)
        for key, one in part.keys.items():
            keys[key].add(one)
    named = [(_key_text(key), one) for key, one in biggest(keys, KEYS_SHOWN).items()]
    own = [windows[start] for start in times_ms]
    arrived, after = [one.messages for one in own], sum(part.after for part in gathered.parts)
    subscriptions = [
        _subscription(backlog, gathered.acks, arrived, after, times_ms, window_ms) for backlog in gathered.backlogs
    ]
    return TopicFigures(gathered.name, partitions, own, total, named, subscriptions, gathered.lags)


def _subscription(
    now: Backlog, parts: Sequence[AcksPart], arrived: Sequence[int], after: int, times_ms: Sequence[int], window_ms: int
) -> SubscriptionFigures:
    name = now.subscription
    windows: dict[int, Settling] = defaultdict(Settling)
    total = Settling()
    for part in parts:
        for start, one in part.settlings.get(name, {}).items():
            windows[window_of(start, window_ms)].add(one)
            total.add(one)
    own = [windows[start] for start in times_ms]
    at_end = now.backlog - after + sum(part.gone_after.get(name, 0) for part in parts)
    found = depths(at_end, arrived, [one.gone for one in own])
    began_ms = min((part.created_ms[name] for part in parts if name in part.created_ms), default=0)
    known = [depth if start + window_ms > began_ms else None for start, depth in zip(times_ms, found, strict=True)]
    return SubscriptionFigures(name, now, own, known, total)


def _key_text(key: bytes | None) -> str:
    if key is None:
        return "(no key)"
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else repr(key)[2:-1]
