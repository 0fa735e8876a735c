"""Offsets of many partitions: serialization for a stream, sharing a limit, and dividing ranges into tasks.

Spark compares the offsets of a stream as text, so equal offsets must always be serialized equally.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.client.metadata import TopicPartition

IDS = "@ids"  # no topic can have this name

OffsetMap = Mapping[TopicPartition, int]


class PlannedRange(msgspec.Struct, frozen=True, gc=False):
    """The offsets [start, end) of one partition, which one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""  # empty if the brokers do not assign topic ids

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.target}, offsets {self.start} to {self.end - 1}"


class StreamOffset(msgspec.Struct, frozen=True):
    """The position of a stream: the next offset of each partition, and the ids of the topics, which distinguish a topic
    from a later one of the same name."""

    offsets: OffsetMap
    ids: Mapping[str, str] = {}

    def to_dict(self) -> dict[str, Any]:
        """`{"orders": {"0": 23}, "@ids": {"orders": "..."}}`, in order."""
        written: dict[str, Any] = {IDS: dict(sorted(self.ids.items()))} if self.ids else {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            written.setdefault(topic, {})[str(partition)] = offset
        return written

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> StreamOffset:
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, numbers in written.items()
            if topic != IDS
            for partition, offset in numbers.items()
        }
        return cls(offsets, dict(written.get(IDS, {})))


def share_limit(begin: OffsetMap, end: OffsetMap, limit: int) -> dict[TopicPartition, int]:
    """The end offset of each partition such that all together have about `limit` records.

    Shares are proportional to the available records, as in Spark's Kafka source, and at least one record, so that a
    large partition does not starve a small one.
    """
    sizes = {target: end[target] - begin[target] for target in end if end[target] > begin[target]}
    total = sum(sizes.values())
    shared = dict(end)
    for target, size in sizes.items():
        exact = limit * size / total
        granted = math.ceil(exact) if exact < 1 else math.floor(exact)
        shared[target] = min(end[target], begin[target] + granted)
    return shared


def split_ranges(
    ranges: Iterable[PlannedRange], *, pieces_min: int | None = None, records_max: int | None = None
) -> list[PlannedRange]:
    """Divide the ranges into pieces of at most `records_max` records, and into at least `pieces_min` if possible."""
    whole = [one for one in ranges if one.size]
    pieces = [1 if records_max is None else math.ceil(one.size / records_max) for one in whole]
    lacking = (pieces_min or 0) - sum(pieces)
    heap = [(-one.size / count, index) for index, (one, count) in enumerate(zip(whole, pieces, strict=True))]
    heapq.heapify(heap)
    while (
        lacking > 0 and heap and heap[0][0] < -1
    ):  # split the range with the largest pieces; no piece below one record
        index = heap[0][1]
        pieces[index] += 1
        lacking -= 1
        heapq.heapreplace(heap, (-whole[index].size / pieces[index], index))
    return [piece for one, count in zip(whole, pieces, strict=True) for piece in _cut(one, count)]


def _cut(whole: PlannedRange, count: int) -> Iterable[PlannedRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(edges):
        yield msgspec.structs.replace(whole, start=start, end=end)
