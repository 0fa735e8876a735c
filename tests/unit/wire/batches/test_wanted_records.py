"""Reading a range of a batch gives the same records as `read_records`, and rejects invalid batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptMessage, InvalidRecord
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, build_batch, parse_header, read_records, set_crc
from headrace.wire.batches.wanted_records import UnpackedBatch

SIZE_MAX = 1 << 20
GZIP = 1

sized = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=60, max_size=300))
headers = st.lists(st.tuples(st.text(max_size=3), sized), max_size=3)
records = st.lists(
    st.builds(BatchRecord, key=sized, value=sized, headers=headers, timestamp_ms=st.integers(0, 1 << 40)),
    min_size=1,
    max_size=100,
)
bounds = st.tuples(st.integers(0, 200), st.integers(0, 200))


def opened(batch: bytearray) -> UnpackedBatch:
    return UnpackedBatch(memoryview(bytes(batch)), parse_header(batch), SIZE_MAX)


@given(
    records=records,
    gaps=st.lists(st.integers(0, 100)),
    wanted=st.lists(bounds, min_size=1, max_size=5),
    compression=st.sampled_from([0, 0, GZIP]),
)
def test_a_range_has_the_same_records_as_a_full_read(
    records: list[BatchRecord], gaps: list[int], wanted: list[tuple[int, int]], compression: int
) -> None:
    offset = 1000
    for number, record in enumerate(records):
        offset += 1 + (gaps[number] if number < len(gaps) else 0)
        record.offset = offset
    first = records[0].offset
    batch = build_batch(records, base_offset=first, compression=compression)
    everything = list(read_records(memoryview(batch), parse_header(batch), SIZE_MAX))
    reading = opened(batch)
    for low, high in [*wanted, (0, 1 << 20)]:
        expected = [
            (one.offset, one.timestamp_ms, one.key, one.value, one.headers)
            for one in everything
            if first + min(low, high) <= one.offset <= first + max(low, high)
        ]
        assert list(reading.read(first + min(low, high), first + max(low, high))) == expected
    assert reading.is_read


@given(records=records, at=st.integers(0, 1 << 16), byte=st.integers(0, 255), first=st.integers(0, 100))
def test_an_invalid_batch_raises_invalid_record(records: list[BatchRecord], at: int, byte: int, first: int) -> None:
    batch = build_batch(records)
    batch[HEADER_SIZE + at % (len(batch) - HEADER_SIZE)] = byte
    set_crc(memoryview(batch))
    try:
        list(opened(batch).read(first, 1 << 40))
    except InvalidRecord:
        return


def test_a_truncated_record_is_rejected() -> None:
    whole = build_batch([BatchRecord(b"k", b"v" * 100, [("h", b"x")], 5)])
    for size_bytes in range(HEADER_SIZE + 1, len(whole) - 1):
        batch = whole[:size_bytes]
        batch[8:12] = (size_bytes - 12).to_bytes(4, "big")
        set_crc(memoryview(batch))
        with pytest.raises(InvalidRecord):
            list(opened(batch).read(0, 10))


def test_a_batch_with_another_checksum_is_not_opened() -> None:
    batch = build_batch([BatchRecord(b"k", b"v", [], 5)])
    batch[-1] ^= 1
    with pytest.raises(CorruptMessage):
        opened(batch)


def test_copies_of_a_batch_are_recognized_by_their_header() -> None:
    one, other = build_batch([BatchRecord(None, b"a", [], 5)]), build_batch([BatchRecord(None, b"b", [], 5)])
    reading = opened(one)
    assert not reading.is_read
    assert reading.is_of(parse_header(one))
    assert not reading.is_of(parse_header(other))
