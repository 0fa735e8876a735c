"""Rows are assigned to partitions, and keep their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.client.produce.partitioner import partition_for_key
from headrace.runtime.entropy import SystemEntropy
from headrace.spark.sink_columns import InvalidRow
from headrace.spark.writing import RowRouter

COUNTS = {"few": 2, "many": 7}


def routed(
    topics: Sequence[str], keys: Sequence[bytes | None], partitions: Sequence[int | None] | None = None
) -> dict[tuple[str, int], list[int]]:
    """The row numbers of each partition, in order."""
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array([b"%d" % number for number in range(len(keys))]),
        "topic": pa.array(topics),
    }
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    there: dict[tuple[str, int], list[int]] = defaultdict(list)
    for target, rows, indexes in RowRouter(COUNTS.__getitem__, 100, SystemEntropy()).parts(
        pa.RecordBatch.from_pydict(columns)
    ):
        values = rows.column("value")
        there[target] += [int(value) for value in (values if indexes is None else values.take(indexes)).to_pylist()]
    return there


def test_a_key_goes_to_the_partition_of_every_client_in_order() -> None:
    keys = [b"key-%d" % (number % 20) for number in range(200)]
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        expected["many", partition_for_key(key, 7)].append(number)
    assert routed(["many"] * 200, keys) == expected


def test_each_topic_has_its_own_partition_count() -> None:
    keys = [b"%d" % number for number in range(100)]
    topics = ["few" if number % 3 else "many" for number in range(100)]
    there = routed(topics, keys)
    for (topic, partition), numbers in there.items():
        assert numbers == [
            n for n in range(100) if topics[n] == topic and partition_for_key(keys[n], COUNTS[topic]) == partition
        ]
    assert sum(map(len, there.values())) == 100


def test_the_partition_column_has_precedence_over_the_key() -> None:
    there = routed(["many"] * 3, [b"k", b"k", None], [5, None, 6])
    assert there == {("many", 5): [0], ("many", partition_for_key(b"k", 7)): [1], ("many", 6): [2]}


@pytest.mark.parametrize("partition", [-1, 7])
def test_a_missing_partition_is_rejected(partition: int) -> None:
    with pytest.raises(InvalidRow, match=f"a row is for partition {partition} of topic 'many', which has 0 to 6"):
        routed(["many"], [b"k"], [partition])


def test_rows_without_a_key_go_to_one_partition_per_batch() -> None:
    there = routed(["many"] * 100, [None] * 100)
    assert sorted(number for numbers in there.values() for number in numbers) == list(range(100))
    assert len(there) == 7
    assert all(numbers == sorted(numbers) for numbers in there.values())


def test_rows_without_a_key_among_others_stay_together() -> None:
    there = routed(["many"] * 10, [b"k", *[None] * 9])
    keyless = {target: set(numbers) - {0} for target, numbers in there.items()}
    assert sorted(map(len, keyless.values()), reverse=True)[0] == 9
