"""The start position of `consume -o`.

start, end      the first record, after the last record
500             offset 500
+500            500 records after the first one
-10             the last ten of each partition
@TIME           the first record at or after a time: ISO 8601, or milliseconds since 1970
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.cli.options import ParsedType, parse_duration
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A position in every partition of a topic."""

    kind: Literal["offset", "after_start", "before_end", "time"]
    number: int

    def within(self, start: int, end: int) -> int:
        """Return the offset in a log with these bounds; not for times."""
        wanted = {"after_start": start + self.number, "before_end": end - self.number}.get(self.kind, self.number)
        return min(end, max(start, wanted))


FROM_START = StartPosition("after_start", 0)
FROM_END = StartPosition("before_end", 0)


def parse_start_position(text: str) -> StartPosition:
    """Parse a position, or raise ValueError with a message for the user."""
    if text in ("start", "beginning", "earliest"):
        return FROM_START
    if text in ("end", "latest"):
        return FROM_END
    if text.startswith("@"):
        return StartPosition("time", _milliseconds(text[1:]))
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a position; write start, end, N, +N, -N or @TIME")
    kind: Literal["offset", "after_start", "before_end"] = (
        "after_start" if sign == "+" else "before_end" if sign == "-" else "offset"
    )
    return StartPosition(kind, int(digits))


def parse_ago(text: str, now_ms: int) -> int | None:
    """Return the time of a text such as 2h-ago; None if the text does not end with -ago."""
    if not text.endswith("-ago"):
        return None
    return max(0, now_ms - parse_duration(text.removesuffix("-ago")))


START_POSITION = ParsedType("position", parse_start_position)


async def partitions_of(cluster: Cluster, *topics: str) -> list[TopicPartition]:
    views = [await cluster.topic(topic) for topic in topics]
    return [TopicPartition(view.name, partition.partition) for view in views for partition in view.partitions]


async def log_bounds(
    cluster: Cluster, targets: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first and the end offsets of the partitions."""
    targets = list(targets)
    return await offsets_at(cluster, targets, START), await offsets_at(cluster, targets, END)


async def offsets_at(cluster: Cluster, targets: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of each partition at a time, or at `START` or `END`."""
    return {t: found.offset for t, found in (await find_offsets(cluster, dict.fromkeys(targets, time_ms))).items()}


async def resolve_offsets(
    cluster: Cluster, targets: Iterable[TopicPartition], where: StartPosition
) -> dict[TopicPartition, int]:
    """Resolve the offset in each partition, limited to the bounds of the log."""
    targets = list(targets)
    starts, ends = await log_bounds(cluster, targets)
    if where.kind == "time":
        found = await offsets_at(cluster, targets, where.number)
        return {t: found[t] if found[t] >= 0 else ends[t] for t in targets}
    return {target: where.within(starts[target], ends[target]) for target in targets}


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-11-15T10:00 or milliseconds since 1970") from None
    return int(moment.timestamp() * 1000)
