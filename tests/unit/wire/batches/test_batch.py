"""Record batches: our own, those of other libraries, and malformed ones."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from headrace.wire.batches import batch as batch_module
from headrace.wire.batches.batch import (
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchRecord,
    assign_offset_and_epoch,
    build_batch,
    check_crc,
    parse_header,
    read_records,
    set_crc,
    set_log_append_time,
)
from headrace.wire.batches.compression import NAMES, SNAPPY
from headrace.wire.batches.record_checks import check_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses a deprecated API for its resources
    aiokafka = import_module("aiokafka.record.default_records")
    kafka_python = import_module("kafka.record.default_records")

# kafka-python requires another package for snappy.
FOREIGN = [(aiokafka, codec) for codec in NAMES] + [(kafka_python, codec) for codec in NAMES if codec != SNAPPY]

RECORDS = [
    BatchRecord(key=b"k", value=b"hello", headers=[("trace", b"1"), ("empty", b""), ("null", None)], timestamp_ms=1000),
    BatchRecord(key=None, value=None, timestamp_ms=1005),
    BatchRecord(key=b"", value=b"", timestamp_ms=990),
    BatchRecord(key=b"big", value=bytes(100_000), timestamp_ms=2_000_000_000_000),
]

records = st.builds(
    BatchRecord,
    key=st.none() | st.binary(max_size=80),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    timestamp_ms=st.integers(0, 1 << 45),
)


def read(batch: bytearray | bytes) -> list[BatchRecord]:
    return list(read_records(memoryview(batch), parse_header(batch), 1 << 24))


@given(st.lists(records, min_size=1, max_size=10), st.sampled_from(sorted(NAMES)))
def test_records_survive_a_round_trip(written: list[BatchRecord], compression: int) -> None:
    batch = build_batch(written, base_offset=100, compression=compression)
    header = parse_header(batch)
    check_records(check_crc(memoryview(batch), header), header, size_bytes_max=1 << 24)
    assert header.record_count == len(written)
    assert header.last_offset == 99 + len(written)
    for number, (before, after) in enumerate(zip(written, read(batch), strict=True)):
        assert after == BatchRecord(before.key, before.value, before.headers, before.timestamp_ms, 100 + number)


def test_the_header_has_the_values_of_build_batch() -> None:
    batch = build_batch(
        RECORDS,
        base_offset=7,
        compression=4,
        leader_epoch=3,
        producer_id=9000,
        producer_epoch=2,
        base_sequence=0x7FFFFFFF,
        attributes=TRANSACTIONAL,
    )
    header = parse_header(memoryview(b"before" + batch), 6)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.leader_epoch) == (7, 10, 11, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9000, 2, 0x7FFFFFFF)
    assert header.last_sequence == 2
    assert (header.base_timestamp, header.max_timestamp) == (1000, 2_000_000_000_000)
    assert (header.magic, header.compression, header.record_count) == (2, 4, 4)
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time


def test_the_bytes_of_a_batch() -> None:
    batch = build_batch([BatchRecord(key=b"k", value=b"v", headers=[("h", b"x")], timestamp_ms=1)])
    assert batch.hex() == (
        "0000000000000000" "0000003e" "ffffffff" "02" f"{parse_header(batch).crc:08x}" "0000" "00000000"
        "0000000000000001" "0000000000000001" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
        "18" "00" "00" "00" "026b" "0276" "02" "0268" "0278"
    )  # fmt: skip


def test_only_short_varints_are_cached() -> None:
    build_batch(
        [BatchRecord(value=b"x" * 20_000, timestamp_ms=5), BatchRecord(value=b"y", timestamp_ms=0, offset=1 << 20)]
    )
    build_batch([BatchRecord(value=b"x"), BatchRecord(value=b"y", offset=1 << 20)])
    assert all(0 <= value < 1 << 14 for value in (*batch_module._VARINTS, *batch_module._PLAIN_HEADS))


def test_the_fast_path_for_plain_records_writes_the_same_bytes() -> None:
    values = [b"", b"x", b"y" * 200, b"z" * 20_000] * 40
    plain = [BatchRecord(value=value, timestamp_ms=7) for value in values]
    # A record that differs does not affect the others.
    mixed = [BatchRecord(key=b"k", value=b"v", timestamp_ms=7), *plain, BatchRecord(value=b"later", timestamp_ms=9)]
    for written in (plain, mixed):
        data = memoryview(build_batch(written))
        header = parse_header(data)
        read = list(read_records(data, header, 1 << 30))
        assert [(one.key, one.value, one.timestamp_ms) for one in read] == [
            (one.key, one.value, one.timestamp_ms) for one in written
        ]
        assert [one.offset for one in read] == list(range(len(written)))
        check_records(check_crc(data, header), header, size_bytes_max=1 << 30)


def test_offsets_with_gaps_are_preserved() -> None:
    kept = [BatchRecord(value=b"a", offset=10), BatchRecord(value=b"b", offset=15), BatchRecord(value=b"c", offset=19)]
    batch = build_batch(kept, base_offset=10)
    assert parse_header(batch).last_offset == 19
    assert [record.offset for record in read(batch)] == [10, 15, 19]


@pytest.mark.parametrize(("writer", "compression"), FOREIGN)
def test_batches_of_other_libraries_are_read(writer: Any, compression: int) -> None:
    foreign = writer.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for number, record in enumerate(RECORDS):
        headers = [(name, value) for name, value in record.headers if value is not None]
        assert foreign.append(number, record.timestamp_ms, record.key, record.value, headers)
    batch = bytes(foreign.build())
    header = parse_header(batch)
    check_records(check_crc(memoryview(batch), header), header, size_bytes_max=1 << 24)
    assert header.compression == compression
    assert [(r.key, r.value, r.timestamp_ms, r.offset) for r in read(batch)] == [
        (r.key, r.value, r.timestamp_ms, number) for number, r in enumerate(RECORDS)
    ]


@pytest.mark.parametrize(("reader", "compression"), FOREIGN)
def test_other_libraries_read_our_batches(reader: Any, compression: int) -> None:
    foreign = reader.DefaultRecordBatch(bytes(build_batch(RECORDS, base_offset=50, compression=compression)))
    assert foreign.validate_crc()
    assert [(r.key, r.value, r.timestamp, r.offset) for r in foreign] == [
        (r.key, r.value, r.timestamp_ms, 50 + number) for number, r in enumerate(RECORDS)
    ]


def test_the_crc_detects_every_flipped_bit() -> None:
    batch = build_batch(RECORDS[:2])
    for position in range(CRC_START - 4, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptMessage):
                check_crc(memoryview(batch), parse_header(batch))
            batch[position] ^= 1 << bit
    check_crc(memoryview(batch), parse_header(batch))


def test_the_crc_of_a_large_batch_is_computed_in_steps() -> None:
    batch = build_batch([BatchRecord(value=bytes([n]) * 50_000) for n in range(10)])
    check_crc(memoryview(batch), parse_header(batch))
    batch[-1] ^= 1
    with pytest.raises(CorruptMessage):
        check_crc(memoryview(batch), parse_header(batch))


def test_an_incomplete_batch_is_corrupt() -> None:
    batch = memoryview(build_batch(RECORDS))
    header = parse_header(batch)
    with pytest.raises(CorruptMessage):
        check_crc(batch[:-1], header)
    for length in range(HEADER_SIZE):
        with pytest.raises(CorruptMessage):
            parse_header(batch[:length])


def test_a_batch_shorter_than_its_header_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    for length in (-1, 0, 48):
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptMessage):
            parse_header(batch)


def test_assigning_offset_and_epoch_preserves_the_crc() -> None:
    batch = build_batch(RECORDS)
    before = bytes(batch)
    assign_offset_and_epoch(memoryview(batch), 1 << 40, 12)
    header = parse_header(batch)
    check_crc(memoryview(batch), header)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 12)
    assert batch[8:12] + batch[16:] == before[8:12] + before[16:]


def test_log_append_time_applies_to_all_records_and_updates_the_crc() -> None:
    batch = build_batch(RECORDS)
    set_log_append_time(memoryview(batch), 5555)
    header = parse_header(batch)
    check_crc(memoryview(batch), header)
    assert header.is_log_append_time
    assert header.attributes == LOG_APPEND_TIME
    assert {record.timestamp_ms for record in read(batch)} == {5555}


def test_control_batches_are_recognized() -> None:
    batch = build_batch([BatchRecord(key=b"\0\0\0\1", value=bytes(6))], attributes=CONTROL | TRANSACTIONAL)
    assert parse_header(batch).is_control


def test_records_that_contradict_their_header_are_invalid() -> None:
    batch = build_batch([BatchRecord(key=b"key", value=b"value", headers=[("h", b"x")])])
    for position in range(HEADER_SIZE, len(batch)):
        for byte in (0x7F, 0xFF):
            broken = bytearray(batch)
            broken[position] = byte
            try:
                read(broken)
            except InvalidRecord:
                continue
            # Only contents, attributes and the two deltas may change.
            assert position - HEADER_SIZE in {1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16, 18}


def test_a_wrong_record_count_is_invalid() -> None:
    for count in (1, 3):
        batch = build_batch(RECORDS[:2])
        batch[57:61] = count.to_bytes(4, "big")
        set_crc(memoryview(batch))
        with pytest.raises(InvalidRecord):
            read(batch)


def test_reading_decompresses_at_most_the_limit() -> None:
    batch = memoryview(build_batch([BatchRecord(value=bytes(100_000))], compression=1))
    with pytest.raises(MessageTooLarge):
        list(read_records(batch, parse_header(batch), 50_000))
