"""Columns hold exactly the records that an application may see; both ways to make them give the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.columns.implementations import BOTH_IMPLEMENTATIONS, NEEDS_LIBRARY, read, rows_of, using_implementation

from headrace.columns.decode import ColumnReader
from headrace.columns.schema import ARROW_SCHEMA, COLUMNS, schema_of
from headrace.model.errors import (
    CorruptMessage,
    HeadraceError,
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from headrace.wire.batches.batch import (
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchRecord,
    build_batch,
    set_crc,
    set_log_append_time,
)
from headrace.wire.batches.compression import NAMES
from headrace.wire.codec.primitives import varint
from headrace.wire.messages.fetch import FetchAbortedTransaction

LARGE = 1 << 70

records = st.builds(
    BatchRecord,
    key=st.none() | st.binary(max_size=80),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(
            st.text(max_size=5) | st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
            st.none() | st.binary(max_size=5),
        ),
        max_size=3,
    ),
    timestamp_ms=st.integers(0, 1 << 45) | st.integers(-(1 << 63), (1 << 63) - 1),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int]:
    """Batch after batch with gaps, as compaction leaves them, and the offset behind the last."""
    data, offset = b"", draw(st.integers(0, 5))
    for contents in draw(st.lists(st.lists(records, min_size=1, max_size=6), max_size=5)):
        base_offset = offset
        timestamp = contents[0].timestamp_ms
        for record in contents:
            record.offset = offset
            offset += draw(st.integers(1, 3))
            # A difference of two timestamps must be one that a record can hold.
            record.timestamp_ms = max(min(record.timestamp_ms, timestamp + (1 << 62)), timestamp - (1 << 62))
        is_transactional = draw(st.booleans())
        batch = build_batch(
            contents,
            base_offset=base_offset,
            compression=draw(st.sampled_from(sorted(NAMES))),
            producer_id=draw(st.integers(1, 2)) if is_transactional else -1,
            attributes=draw(st.sampled_from([TRANSACTIONAL, TRANSACTIONAL | CONTROL])) if is_transactional else 0,
        )
        if draw(st.booleans()):
            set_log_append_time(memoryview(batch), draw(st.integers(0, 1 << 45)))
        data += batch
    return data, offset


def batch(base_offset: int, *values: bytes, producer_id: int = -1, attributes: int = 0, compression: int = 0) -> bytes:
    contents = [BatchRecord(value=value) for value in values]
    made = build_batch(
        contents, base_offset=base_offset, producer_id=producer_id, attributes=attributes, compression=compression
    )
    return bytes(made)


def marker(offset: int, producer_id: int) -> bytes:
    return batch(offset, b"\0\0", producer_id=producer_id, attributes=CONTROL | TRANSACTIONAL)


def values(way: str, data: bytes, start: int = 0, end: int = 1 << 40, **rules: object) -> list[object]:
    taken, _ = read(way, [data], start, end, columns=["value"], **rules)  # type: ignore[arg-type]
    return [row["value"] for row in rows_of(taken)]


@BOTH_IMPLEMENTATIONS
def test_a_record_becomes_a_row_of_all_columns(way: str) -> None:
    record = BatchRecord(b"k", b"v", [("trace", b"1"), ("null", None), ("é", b"")], timestamp_ms=1_700_000_000_123)
    taken, next_offset = read(way, [build_batch([record, BatchRecord(timestamp_ms=-1)], base_offset=40)])
    assert next_offset == 42
    assert [rows.schema for rows in taken] == [ARROW_SCHEMA]
    assert rows_of(taken) == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "orders",
            "partition": 3,
            "offset": 40,
            "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
            "timestampType": 0,
            "headers": [
                {"key": "trace", "value": b"1"},
                {"key": "null", "value": None},
                {"key": "é", "value": b""},
            ],
        },
        {
            "key": None,
            "value": None,
            "topic": "orders",
            "partition": 3,
            "offset": 41,
            "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
            "timestampType": 0,
            "headers": [],
        },
    ]


@NEEDS_LIBRARY
@given(
    log=logs(),
    start=st.integers(0, 40),
    length=st.integers(0, 40),
    columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
    aborted=st.lists(
        st.builds(FetchAbortedTransaction, producer_id=st.integers(1, 2), first_offset=st.integers(0, 40))
    ),
    read_committed=st.booleans(),
    rows_max=st.integers(1, 20),
    bytes_max=st.integers(1, 500),
    cut=st.integers(0, 80),
)
def test_both_ways_make_the_same_columns(
    log: tuple[bytes, int],
    start: int,
    length: int,
    columns: list[str],
    aborted: list[FetchAbortedTransaction],
    read_committed: bool,
    rows_max: int,
    bytes_max: int,
    cut: int,
) -> None:
    data = log[0] + batch(log[1], b"cut off")[:cut] if log[0] else b""
    made = [
        read(
            way,
            [data, log[0]],
            start,
            start + length,
            columns=columns,
            aborted=aborted,
            read_committed=read_committed,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        for way in ("native", "pure")
    ]
    assert made[0] == made[1]


@NEEDS_LIBRARY
@given(data=st.data(), log=logs())
def test_both_ways_refuse_a_damaged_batch_alike(data: st.DataObject, log: tuple[bytes, int]) -> None:
    """With a checksum that is right, or nothing but the checksum would be tested."""
    damaged = bytearray(log[0])
    if len(damaged) <= HEADER_SIZE:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    size_bytes = int.from_bytes(damaged[8:12], "big") + 12 if len(damaged) >= HEADER_SIZE else 0
    if HEADER_SIZE <= size_bytes <= len(damaged):
        set_crc(memoryview(damaged)[:size_bytes])
    outcomes = []
    for way in ("native", "pure"):
        try:
            outcomes.append(read(way, [damaged]))
        except HeadraceError as error:
            outcomes.append(type(error))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("compression", sorted(NAMES))
def test_every_compression_is_unpacked(way: str, compression: int) -> None:
    assert values(way, batch(0, b"a" * 1000, b"b", compression=compression)) == [b"a" * 1000, b"b"]


@BOTH_IMPLEMENTATIONS
def test_a_range_may_begin_and_end_inside_a_batch(way: str) -> None:
    data = batch(0, b"a") + batch(10, b"b", b"c", b"d", b"e") + batch(14, b"f")
    assert values(way, data, 11, 13) == [b"c", b"d"]


@BOTH_IMPLEMENTATIONS
def test_the_broker_s_time_counts_where_a_topic_says_so(way: str) -> None:
    made = build_batch([BatchRecord(timestamp_ms=5), BatchRecord(timestamp_ms=7)])
    set_log_append_time(memoryview(made), 90)
    taken, _ = read(way, [made], columns=["timestamp", "timestampType"])
    at = datetime.fromtimestamp(0.09, UTC)
    assert rows_of(taken) == [{"timestamp": at, "timestampType": 1}] * 2


@BOTH_IMPLEMENTATIONS
def test_a_timestamp_beyond_the_calendar_is_the_last_there_is(way: str) -> None:
    made = build_batch([BatchRecord(timestamp_ms=(1 << 63) - 1), BatchRecord(timestamp_ms=-(1 << 62))])
    taken, _ = read(way, [made], columns=["timestamp"])
    limit = (1 << 63) // 1000 * 1000
    assert [value.value for value in taken[0].column(0)] == [limit, -limit]


@BOTH_IMPLEMENTATIONS
def test_a_header_s_name_that_is_no_text_is_mended(way: str) -> None:
    made = build_batch([BatchRecord(headers=[(b"a\xff".decode("utf-8", "surrogateescape"), b"\xff"), ("ok", None)])])
    taken, _ = read(way, [made], columns=["headers"])
    assert rows_of(taken) == [{"headers": [{"key": "a\ufffd", "value": b"\xff"}, {"key": "ok", "value": None}]}]


@BOTH_IMPLEMENTATIONS
def test_control_batches_are_passed_over(way: str) -> None:
    taken, next_offset = read(way, [batch(0, b"a") + marker(1, 7)], columns=["value"])
    assert (rows_of(taken), next_offset) == ([{"value": b"a"}], 2)


@BOTH_IMPLEMENTATIONS
def test_an_aborted_transaction_is_left_out_up_to_its_marker(way: str) -> None:
    data = (
        batch(0, b"open", producer_id=7, attributes=TRANSACTIONAL)
        + batch(1, b"plain")
        + batch(2, b"other", producer_id=8, attributes=TRANSACTIONAL)
        + marker(3, 7)
        + batch(4, b"again", producer_id=7, attributes=TRANSACTIONAL)
        + marker(5, 7)
    )
    aborted = [FetchAbortedTransaction(producer_id=7, first_offset=0)]
    assert values(way, data, aborted=aborted) == [b"plain", b"other", b"again"]
    assert values(way, data, aborted=aborted, read_committed=False) == [b"open", b"plain", b"other", b"again"]


@BOTH_IMPLEMENTATIONS
def test_rows_come_in_batches_of_bounded_size(way: str) -> None:
    data = b"".join(batch(2 * n, b"a" * 10, b"b" * 10) for n in range(10))
    by_rows, _ = read(way, [data], rows_max=5)
    by_bytes, _ = read(way, [data], bytes_max=35)
    assert [rows.num_rows for rows in by_rows] == [6, 6, 6, 2]
    assert [rows.num_rows for rows in by_bytes] == [4, 4, 4, 4, 4]


@BOTH_IMPLEMENTATIONS
def test_headers_that_are_empty_take_room_as_well(way: str) -> None:
    data = b"".join(build_batch([BatchRecord(headers=[("", None)] * 10)], base_offset=offset) for offset in range(4))
    taken, _ = read(way, [data], bytes_max=100)
    assert [rows.num_rows for rows in taken] == [2, 2]


@BOTH_IMPLEMENTATIONS
def test_a_topic_s_name_is_on_every_row_of_batches_that_grow(way: str) -> None:
    taken, _ = read(way, [batch(0, b"a"), batch(1, *[b"b"] * 100), batch(101, b"c")], rows_max=1)
    assert [rows.column("topic").to_pylist() for rows in taken] == [["orders"], ["orders"] * 100, ["orders"]]


@BOTH_IMPLEMENTATIONS
def test_small_answers_are_gathered(way: str) -> None:
    taken, _ = read(way, [batch(n, b"a") for n in range(10)], rows_max=8)
    assert [rows.num_rows for rows in taken] == [8, 2]


@BOTH_IMPLEMENTATIONS
def test_nothing_is_unpacked_before_it_is_taken(way: str) -> None:
    """Ten answers of a megabyte of zeros are a few kilobytes as they come."""
    with using_implementation(way):
        reader = ColumnReader("orders", 3, ["value"], 0, 100, read_committed=True)
    for offset in range(10):
        reader.add(memoryview(batch(offset, bytes(1 << 20), compression=4)))
    assert (reader.rows, reader.data_bytes, reader.next_offset) == (0, 0, 10)
    assert reader.take(100, 1 << 20) is not None
    assert reader.rows == 0


@BOTH_IMPLEMENTATIONS
def test_an_answer_without_a_whole_batch_is_told(way: str) -> None:
    with pytest.raises(MessageTooLarge):
        read(way, [batch(0, b"a" * 100)[:100]])


@BOTH_IMPLEMENTATIONS
def test_a_flipped_bit_anywhere_under_the_checksum_is_found(way: str) -> None:
    whole = batch(0, b"a", b"b")
    for position in range(17, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptMessage):
            read(way, [damaged])


@BOTH_IMPLEMENTATIONS
def test_a_control_batch_with_a_flipped_bit_hides_nothing(way: str) -> None:
    damaged = bytearray(batch(0, b"a"))
    damaged[22] |= CONTROL
    with pytest.raises(CorruptMessage):
        read(way, [damaged])


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (16, b"\x01"),  # the format before
        (0, b"\xff"),  # an offset below zero
        (23, b"\xff"),  # a last offset below the first
        (0, b"\x7f" + b"\xff" * 7),  # a last offset that no number can hold
    ],
)
def test_a_header_that_makes_no_sense_is_refused(way: str, position: int, value: bytes) -> None:
    damaged = bytearray(batch(0, b"a"))
    damaged[position : position + len(value)] = value
    set_crc(memoryview(damaged))
    with pytest.raises(CorruptMessage):
        read(way, [damaged])


def record(
    *parts: bytes, size: int | None = None, head: bytes = b"\0" + varint(0) + varint(0), count: int = 1
) -> bytearray:
    body = head + b"".join(parts)
    payload = varint(len(body) if size is None else size) + body
    made = bytearray(batch(0, b"a")[:HEADER_SIZE]) + payload
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[57:61] = count.to_bytes(4, "big", signed=True)
    set_crc(memoryview(made))
    return made


NULL, NONE = varint(-1), varint(0)


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize(
    "damaged",
    [
        record(NULL, NULL, NONE, size=LARGE - 1),
        record(NULL, NULL, NONE, size=-1),
        record(NULL, NULL, NONE, size=0),
        record(NULL, NULL, NONE, b"\0"),
        record(NULL, NULL, NONE, size=5),
        record(NULL, NULL, NONE, count=2),
        record(NULL, NULL, NONE, count=0),
        record(NULL, NULL, NONE, count=-1),
        record(NULL, NULL, NONE, count=(1 << 31) - 1),
        record(varint(100), b"k", NULL, NONE),
        record(varint(-2), NULL, NONE),
        record(NULL, varint(LARGE - 1), NONE),
        record(NULL, NULL, varint(LARGE - 1)),
        record(NULL, NULL, varint(-1)),
        record(NULL, NULL, varint(3), NULL, NULL),
        record(NULL, NULL, varint(1), NULL, NULL),
        record(NULL, NULL, varint(1), NULL),
        record(NULL, NULL, varint(1), varint(9), NULL),
        record(NULL, NULL, varint(1), varint(0), varint(9)),
        record(b"\xff" * 11, NULL, NONE),
        record(NULL, NULL, NONE, head=b"\0" + varint(0) + varint(1)),
        record(NULL, NULL, NONE, head=b"\0" + varint(0) + varint(-1)),
        record(NULL, NULL, NONE, head=b"\0" + varint(0) + varint(LARGE - 1)),
        record(NULL, NULL, NONE, head=b"\0" + b"\xff" * 11),
        record(head=b""),
        record(head=b"\0"),
    ],
)
def test_records_that_do_not_add_up_are_refused(way: str, damaged: bytearray) -> None:
    with pytest.raises(InvalidRecord):
        read(way, [damaged])


@BOTH_IMPLEMENTATIONS
def test_a_timestamp_of_more_than_64_bits_is_the_last_there_is(way: str) -> None:
    made = record(NULL, NULL, NONE, head=b"\0" + varint(1 << 68) + varint(0))
    taken, _ = read(way, [made], columns=["timestamp"])
    assert taken[0].column(0)[0].value == (1 << 63) // 1000 * 1000


@BOTH_IMPLEMENTATIONS
def test_an_unknown_compression_is_refused(way: str) -> None:
    damaged = bytearray(batch(0, b"a"))
    damaged[22] |= 7
    set_crc(memoryview(damaged))
    with pytest.raises(UnsupportedCompressionType):
        read(way, [damaged])


@BOTH_IMPLEMENTATIONS
def test_a_batch_that_compaction_emptied_still_moves_on(way: str) -> None:
    emptied = bytearray(batch(5, b"a", b"b")[:HEADER_SIZE])
    emptied[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    emptied[57:61] = bytes(4)
    set_crc(memoryview(emptied))
    assert read(way, [emptied]) == ([], 7)


def test_a_column_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no column 'size'; the columns are key, value"):
        schema_of(["key", "size"])
