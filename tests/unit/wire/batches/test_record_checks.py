"""The fast check of records agrees with a reader that checks every record individually."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import InvalidRecord, MessageTooLarge
from headrace.wire.batches.batch import CRC_START, HEADER_SIZE, BatchRecord, build_batch, parse_header, read_records
from headrace.wire.batches.compression import NAMES
from headrace.wire.batches.record_checks import check_records
from headrace.wire.codec.primitives import varint


def passes(batch: bytearray | bytes, *, keys_required: bool = False) -> bool:
    try:
        check_records(
            bytes(batch[CRC_START:]), parse_header(batch), keys_required=keys_required, size_bytes_max=1 << 24
        )
    except InvalidRecord:
        return False
    return True


def passes_slowly(batch: bytearray | bytes, *, keys_required: bool = False) -> bool:
    header = parse_header(batch)
    try:
        records = list(read_records(memoryview(batch), header, 1 << 24))
    except InvalidRecord:
        return False
    offsets = [record.offset for record in records]
    return offsets == list(range(len(records))) and not (
        keys_required and any(record.key is None for record in records)
    )


def with_payload(batch: bytes | bytearray, payload: bytes, count: int | None = None) -> bytearray:
    changed = bytearray(batch[:HEADER_SIZE]) + payload
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    if count is not None:
        changed[57:61] = count.to_bytes(4, "big", signed=True)
    return changed


def equal_records(count: int, size_bytes: int = 100) -> list[BatchRecord]:
    random = Random(count)
    return [BatchRecord(value=random.randbytes(size_bytes), timestamp_ms=n // 30) for n in range(count)]


def mixed_records(count: int) -> list[BatchRecord]:
    random = Random(count)
    return [
        BatchRecord(
            key=random.choice((None, b"", b"k" * random.choice((3, 3, 3, 70)))),
            value=random.choice((None, random.randbytes(random.choice((10, 10, 10, 60, 61, 62, 200, 9000))))),
            headers=[("h", b"v" * random.randint(0, 3))] * random.choice((0, 0, 0, 1, 2)),
            timestamp_ms=random.choice((5, 5, 5, 80, 10_000, 1 << 40)),
        )
        for _ in range(count)
    ]


def runs_of_records(count: int) -> list[BatchRecord]:
    """Runs of records of one size, interrupted at times."""
    random = Random(count)
    records: list[BatchRecord] = []
    while len(records) < count:
        key = random.choice((None, b"key"))
        size_bytes = random.choice((0, 5, 60, 63, 64, 100, 1000))
        headers = random.choice(([], [("trace", b"1234")]))
        length = random.choice((1, 2, 5, 17, 40, 300))
        records += [BatchRecord(key, random.randbytes(size_bytes), headers, len(records) // 7) for _ in range(length)]
    return records[:count]


KINDS = {"equal": equal_records, "mixed": mixed_records, "runs": runs_of_records}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 16, 63, 64, 65, 129, 500, 8191, 8193, 9000])
def test_valid_batches_pass(kind: str, count: int) -> None:
    assert passes(build_batch(KINDS[kind](count)))


@pytest.mark.parametrize("codec", sorted(NAMES))
@pytest.mark.parametrize("kind", KINDS)
def test_valid_compressed_batches_pass(kind: str, codec: int) -> None:
    assert passes(build_batch(KINDS[kind](3000), compression=codec))


@pytest.mark.parametrize("codec", sorted(NAMES))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [-1, 1, 1000, 1 << 30])
def test_a_wrong_record_count_is_invalid(kind: str, codec: int, difference: int) -> None:
    batch = build_batch(KINDS[kind](200), compression=codec)
    assert not passes(with_payload(batch, bytes(batch[HEADER_SIZE:]), 200 + difference))


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_and_every_appended_byte_is_invalid(kind: str) -> None:
    batch = build_batch(KINDS[kind](70))
    payload = bytes(batch[HEADER_SIZE:])
    for length in range(0, len(payload), 1 + len(payload) // 500):
        assert not passes(with_payload(batch, payload[:length]))
    for more in (b"\0", b"\xff" * 6, payload[:110], payload):
        assert not passes(with_payload(batch, payload + more))


@settings(max_examples=400)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    count=st.integers(1, 150),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xFF]),
    keys_required=st.booleans(),
)
def test_one_changed_byte_has_the_same_result_as_the_slow_reader(
    kind: str, count: int, place: float, byte: int, keys_required: bool
) -> None:
    batch = build_batch(KINDS[kind](count))
    batch[HEADER_SIZE + int(place * (len(batch) - HEADER_SIZE))] = byte
    assert passes(batch, keys_required=keys_required) == passes_slowly(batch, keys_required=keys_required)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_change_of_a_small_batch_has_the_same_result_as_the_slow_reader(kind: str) -> None:
    batch = build_batch([BatchRecord(r.key, (r.value or b"")[:9], r.headers, 3) for r in KINDS[kind](24)])
    for position in range(HEADER_SIZE, len(batch)):
        original = batch[position]
        for byte in {0, 1, 2, original ^ 1, original ^ 0x80, (original + 2) & 0xFF}:
            batch[position] = byte
            assert passes(batch) == passes_slowly(batch), (position, byte)
        batch[position] = original


@settings(max_examples=200)
@given(st.binary(max_size=120), st.integers(0, 12))
def test_garbage_has_the_same_result_as_the_slow_reader(payload: bytes, count: int) -> None:
    batch = with_payload(build_batch([BatchRecord()]), payload, count)
    assert passes(batch) == passes_slowly(batch)


def test_an_invalid_record_within_a_run_is_detected() -> None:
    batch = build_batch([BatchRecord(value=bytes(100)) for _ in range(9000)])
    # length 2, attributes 1, timestamp delta 1, offset delta 3, key 1, value 2 + 100, header count 1
    stride = 111
    record = len(batch) - 400 * stride
    for place in (0, 1, 4, 5, 6, 7, 8, 9, 110):
        broken = bytearray(batch)
        broken[record + place] ^= 2
        assert not passes(broken), place
        assert not passes_slowly(broken), place


def test_offsets_must_count_up_from_zero() -> None:
    assert not passes(build_batch([BatchRecord(offset=0), BatchRecord(offset=2)]))
    assert not passes(build_batch([BatchRecord(offset=1), BatchRecord(offset=2)]))
    assert not passes(build_batch([BatchRecord(offset=0), BatchRecord(offset=0)]))


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_required_for_compacted_topics(kind: str) -> None:
    keyed = [BatchRecord(b"key", record.value, record.headers, 7) for record in KINDS[kind](300)]
    assert passes(build_batch(keyed), keys_required=True)
    for keyless in (0, 150, 299):
        records = [*keyed]
        records[keyless] = BatchRecord(None, b"xyz", timestamp_ms=7)
        assert passes(build_batch(records))
        assert not passes(build_batch(records), keys_required=True)


def test_a_timestamp_may_have_any_valid_width() -> None:
    for delta in (0, -1, 63, 64, -(1 << 62), (1 << 62)):
        body = b"\0" + varint(delta) + b"\0\1\1\0"
        assert passes(with_payload(build_batch([BatchRecord()]), varint(len(body)) + body, 1))
    body = b"\0" + b"\xff" * 10 + b"\1" + b"\0\1\1\0"
    assert not passes(with_payload(build_batch([BatchRecord()]), varint(len(body)) + body, 1))


@pytest.mark.parametrize("codec", sorted(set(NAMES) - {0}))
def test_a_bomb_of_records_stops_at_the_limit(codec: int) -> None:
    batch = build_batch([BatchRecord(value=bytes(1 << 20)) for _ in range(8)], compression=codec)
    sealed = bytes(batch[CRC_START:])
    check_records(sealed, parse_header(batch), size_bytes_max=9 << 20)
    with pytest.raises(MessageTooLarge):
        check_records(sealed, parse_header(batch), size_bytes_max=1 << 20)


def test_decompression_stops_after_the_last_record() -> None:
    zeros = memoryview(build_batch([BatchRecord(value=bytes(60_000_000))], compression=4))
    header = parse_header(with_payload(bytes(zeros), bytes(zeros[HEADER_SIZE:]), 0))
    with pytest.raises(InvalidRecord):
        check_records(bytes(zeros[CRC_START:]), header, size_bytes_max=1 << 20)
