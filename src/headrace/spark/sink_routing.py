"""Which rows go to which partition: rows in, for each partition its own rows out, in the order they had.

A partition that a row names counts before its key. Rows with neither stay together by the batch, so that batches are
few and full; where the first of them goes is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.metadata import TopicPartition
from headrace.columns.encode import partitions_of
from headrace.runtime.entropy import Entropy
from headrace.spark.sink_columns import InvalidRow


class PartitionRows(NamedTuple):
    """The rows at these indexes (None: all of them) go to one partition."""

    target: TopicPartition
    rows: pa.RecordBatch
    indexes: pa.Array | None


class RowRouter:
    """`total_offset_count` tells how many partitions a topic has."""

    def __init__(self, count_of: Callable[[str], int], batch_bytes: int, entropy: Entropy) -> None:
        self._count_of = count_of
        self._batch_bytes = batch_bytes
        self._entropy = entropy

    def parts(self, rows: pa.RecordBatch) -> Iterator[PartitionRows]:
        """The rows by topic and partition. Raises InvalidRow for a partition that is not there."""
        topics = rows.column("topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            theirs = rows if len(names) == 1 else rows.filter(pc.equal(topics, name))
            count = self._count_of(name)
            if "partition" in theirs.schema.names:
                yield from _parts(theirs, name, self._named(theirs, name, count))
            elif theirs.column("key").null_count < len(theirs):
                yield from _parts(theirs, name, self._by_key(theirs, count))
            else:
                yield from self._dealt(theirs, name, count)

    def _by_key(self, rows: pa.RecordBatch, count: int) -> pa.Array:
        return partitions_of(rows.column("key"), count, keyless=self._any(count))

    def _named(self, rows: pa.RecordBatch, topic: str, count: int) -> pa.Array:
        named = rows.column("partition")
        ends = pc.min_max(named)
        for end in (ends["min"].as_py(), ends["max"].as_py()):
            if end is not None and not 0 <= end < count:
                raise InvalidRow(f"a row is for partition {end} of topic {topic!r}, which has 0 to {count - 1}")
        return pc.coalesce(named, self._by_key(rows, count)) if named.null_count else named

    def _dealt(self, rows: pa.RecordBatch, topic: str, count: int) -> Iterator[PartitionRows]:
        """About a batch for each partition in turn."""
        each = max(1, len(rows) * self._batch_bytes // max(1, rows.nbytes))
        first = self._any(count)
        for turn, position in enumerate(range(0, len(rows), each)):
            yield PartitionRows(TopicPartition(topic, (first + turn) % count), rows.slice(position, each), None)

    def _any(self, count: int) -> int:
        return self._entropy.integer(0, count - 1)


def _parts(rows: pa.RecordBatch, topic: str, numbers: pa.Array) -> Iterator[PartitionRows]:
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(numbers).to_pylist()}
    if len(counts) == 1:
        yield PartitionRows(TopicPartition(topic, next(iter(counts))), rows, None)
        return
    order = pc.array_sort_indices(numbers)  # stable: each partition's rows keep their order
    position = 0
    for number in sorted(counts):
        yield PartitionRows(TopicPartition(topic, number), rows, order.slice(position, counts[number]))
        position += counts[number]
