"""Rows become batches that a broker takes and that read back as they were."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.columns.implementations import (
    BOTH_IMPLEMENTATIONS,
    NATIVE,
    NEEDS_LIBRARY,
    read,
    rows_of,
    using_implementation,
)

from headrace.client.produce.batch_writer import ReadyBatch
from headrace.client.produce.partitioner import partition_for_key
from headrace.columns.encode import encode_batches, partitions_of
from headrace.columns.schema import HEADERS_TYPE, schema_of
from headrace.model.errors import InvalidRecord
from headrace.wire.batches.batch import HEADER_SIZE, assign_offset_and_epoch, check_crc, parse_header, read_records
from headrace.wire.batches.compression import NAMES
from headrace.wire.batches.record_checks import check_records

COLUMNS = ("key", "value", "headers", "timestamp")
NOW_MS = 1_700_000_000_000

rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=100),
            "value": st.none() | st.binary(max_size=300),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=5)}),
                max_size=3,
            ),
            "timestamp": st.none() | st.integers(-(1 << 45), 1 << 45).map(lambda ms: ms * 1000),
        }
    ),
    max_size=20,
)


def rows_from(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema_of(COLUMNS))


def placed(batches: list[ReadyBatch]) -> list[bytearray]:
    """As a log keeps them, one behind the other; each is checked as a broker does before it acknowledges one."""
    offset = 0
    for made in batches:
        view = memoryview(made.encoded)
        header = parse_header(view)
        sealed = check_crc(view, header)
        check_records(sealed, header, size_bytes_max=1 << 30)
        assert header.record_count == made.record_count
        assign_offset_and_epoch(view, offset, 0)
        offset += made.record_count
    return [bytearray(made.encoded) for made in batches]


@pytest.mark.parametrize("way", [NATIVE, "pure"])
@given(rows=rows_strategy, data=st.data(), compression=st.sampled_from(sorted(NAMES)))
def test_rows_read_back_as_they_were(
    way: str, rows: list[dict[str, object]], data: st.DataObject, compression: int
) -> None:
    """Of a slice, some rows by their indexes: what a sink hands in."""
    whole = rows_from(rows)
    first = data.draw(st.integers(0, len(rows)))
    part = whole.slice(first)
    indexes = data.draw(st.lists(st.integers(0, part.num_rows - 1)) if part.num_rows else st.just([]))
    with using_implementation(way):
        batches = encode_batches(
            part,
            pa.array(indexes, pa.int32()),
            now_ms=NOW_MS,
            compression=compression,
            batch_bytes_max=data.draw(st.integers(100, 2000)),
        )
    taken, _ = read(way, placed(batches), columns=COLUMNS)
    expected = part.take(pa.array(indexes, pa.int64())).to_pylist()
    for row in expected:
        row["headers"] = row["headers"] or []
        row["timestamp"] = row["timestamp"] or datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert rows_of(taken) == expected


@BOTH_IMPLEMENTATIONS
def test_values_alone_are_enough(way: str) -> None:
    with using_implementation(way):
        (made,) = encode_batches(pa.RecordBatch.from_pydict({"value": ["text", None]}), now_ms=NOW_MS)
    taken, _ = read(way, placed([made]), columns=["key", "value"])
    assert rows_of(taken) == [{"key": None, "value": b"text"}, {"key": None, "value": None}]


@BOTH_IMPLEMENTATIONS
def test_indexes_may_be_part_of_a_longer_list(way: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"]})
    with using_implementation(way):
        (made,) = encode_batches(rows, pa.array([0, 0, 2, 1, 0], pa.int64()).slice(2, 2), now_ms=NOW_MS)
    taken, _ = read(way, placed([made]), columns=["value"])
    assert rows_of(taken) == [{"value": b"c"}, {"value": b"b"}]


@BOTH_IMPLEMENTATIONS
def test_no_rows_make_no_batch(way: str) -> None:
    with using_implementation(way):
        assert encode_batches(rows_from([]), now_ms=NOW_MS) == []
        assert encode_batches(rows_from([{"value": b"a"}]), pa.array([], pa.int64()), now_ms=NOW_MS) == []


@BOTH_IMPLEMENTATIONS
def test_batches_stay_below_their_bound_unless_one_record_is_larger(way: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"a" * 100] * 50 + [b"b" * 5000] + [b"c"] * 2})
    with using_implementation(way):
        batches = encode_batches(rows, now_ms=NOW_MS, batch_bytes_max=1000)
    assert sum(made.record_count for made in batches) == 53
    assert max(len(made.encoded) for made in batches[:-2]) <= 1000
    assert len(batches) < 12
    assert [made.record_count for made in batches if len(made.encoded) > 1000] == [1]


@BOTH_IMPLEMENTATIONS
def test_a_producer_s_sequence_goes_on_from_batch_to_batch_and_wraps(way: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"a" * 400] * 5})
    with using_implementation(way):
        batches = encode_batches(
            rows,
            now_ms=NOW_MS,
            producer_id=5,
            producer_epoch=2,
            base_sequence=(1 << 31) - 2,
            is_transactional=True,
            batch_bytes_max=1100,
        )
    headers = [parse_header(made.encoded) for made in batches]
    assert [header.record_count for header in headers] == [2, 2, 1]
    assert [header.base_sequence for header in headers] == [(1 << 31) - 2, 0, 2]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(5, 2)}
    assert all(header.is_transactional for header in headers)


@BOTH_IMPLEMENTATIONS
def test_a_batch_without_a_producer_has_no_sequence(way: str) -> None:
    with using_implementation(way):
        (made,) = encode_batches(pa.RecordBatch.from_pydict({"value": [b"a"]}), now_ms=NOW_MS)
    header = parse_header(made.encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@BOTH_IMPLEMENTATIONS
def test_the_header_knows_the_latest_timestamp(way: str) -> None:
    rows = rows_from([{"timestamp": 5_000_999}, {"timestamp": 9_000_000}, {"timestamp": -1}])
    with using_implementation(way):
        (made,) = encode_batches(rows, now_ms=NOW_MS)
    header = parse_header(made.encoded)
    assert (header.base_timestamp, header.max_timestamp) == (5000, 9000)
    records = read_records(memoryview(made.encoded), header, 1 << 20)
    assert [record.timestamp_ms for record in records] == [5000, 9000, -1]


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("headers", [[[None]], [[{"key": None, "value": b"a"}]]])
def test_a_header_without_a_name_is_refused(way: str, headers: list[object]) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array(headers, HEADERS_TYPE)], ["value", "headers"])
    with using_implementation(way), pytest.raises(InvalidRecord):
        encode_batches(rows, now_ms=NOW_MS)


@pytest.mark.parametrize("way", [NATIVE, "pure"])
@given(keys=st.lists(st.none() | st.binary(max_size=20)), count=st.integers(1, 1000), data=st.data())
def test_keys_go_where_every_client_puts_them(
    way: str, keys: list[bytes | None], count: int, data: st.DataObject
) -> None:
    keyless = data.draw(st.integers(0, count - 1))
    first = data.draw(st.integers(0, len(keys)))
    with using_implementation(way):
        found = partitions_of(pa.array(keys, pa.binary())[first:], count, keyless=keyless)
    expected = [keyless if key is None else partition_for_key(key, count) for key in keys[first:]]
    assert found == pa.array(expected, pa.int32())


@BOTH_IMPLEMENTATIONS
def test_text_is_hashed_as_its_bytes(way: str) -> None:
    with using_implementation(way):
        assert partitions_of(pa.array(["é"]), 100, keyless=0).to_pylist() == [partition_for_key("é".encode(), 100)]


@NEEDS_LIBRARY
def test_the_bytes_of_both_ways_are_the_same() -> None:
    rows = rows_from([{"key": b"k", "value": b"v", "headers": [{"key": "h", "value": None}]}, {"value": b"w" * 200}])
    made = []
    for way in ("native", "pure"):
        with using_implementation(way):
            made.append(encode_batches(rows, now_ms=NOW_MS, producer_id=1, producer_epoch=0, base_sequence=7))
    assert made[0] == made[1]
    assert len(made[0][0].encoded) > HEADER_SIZE
