"""What the library finds sound, Python accepts; and of ordinary batches it finds sound whatever Python accepts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.native.mutations import SEEDS, agrees, is_accepted, mutated

from headrace.native import soundness
from headrace.native.library import Library, library
from headrace.native.soundness import is_surely_sound
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, build_batch, set_crc
from headrace.wire.batches.compression import GZIP, LZ4, SNAPPY, ZSTD
from headrace.wire.codec.primitives import varint

NEEDS_LIBRARY = pytest.mark.skipif(soundness._calls() is None, reason="the library was not built, or has no checksum")

PARTS = st.none() | st.binary(max_size=8) | st.sampled_from([bytes(63), bytes(64), bytes(8191), bytes(8192)])
RECORDS = st.builds(
    BatchRecord,
    PARTS,
    PARTS,
    st.lists(st.tuples(st.text(max_size=3), PARTS), max_size=3),
    st.integers(0, (1 << 63) - 1) | st.integers(0, 200),
)


def padded(number: int, width: int) -> bytes:
    """A varint that takes more bytes than it needs, as Python takes it, too."""
    data = varint(number)
    if len(data) >= width:
        return data
    return data[:-1] + bytes([data[-1] | 0x80]) + b"\x80" * (width - len(data) - 1) + b"\0"


NUMBERS = st.builds(padded, st.sampled_from([-1, 0, 1, 2, 63, 64, 1 << 20, 1 << 62, (1 << 63) - 1]), st.integers(1, 11))
MOSTLY_NOTHING = st.sampled_from([0, 0, 0, 0, -1, 1])


def of_records(payload: bytes, count: int) -> bytearray:
    """A batch with these records, whatever they are."""
    batch = build_batch([BatchRecord(value=b"")])
    batch[HEADER_SIZE:] = payload
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    set_crc(memoryview(batch))
    return batch


@NEEDS_LIBRARY
@given(st.lists(RECORDS, min_size=1, max_size=5), st.booleans())
def test_of_ordinary_batches_it_says_what_python_says(records: list[BatchRecord], keys_required: bool) -> None:
    has_keys = all(record.key is not None for record in records)
    assert agrees(build_batch(records), keys_required=keys_required) == (has_keys or not keys_required)


@NEEDS_LIBRARY
@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_any_number_of_records_is_found_sound_however_large_the_batch(count: int) -> None:
    batch = build_batch([BatchRecord(value=b"some value", timestamp_ms=at) for at in range(count)])
    assert is_surely_sound(memoryview(batch), keys_required=False)
    assert not is_surely_sound(memoryview(batch), keys_required=True)


@NEEDS_LIBRARY
@given(
    st.lists(
        st.tuples(NUMBERS, MOSTLY_NOTHING, st.integers(1, 11), MOSTLY_NOTHING, st.integers(1, 7)),
        min_size=1,
        max_size=3,
    ),
    MOSTLY_NOTHING,
)
def test_of_odd_varints_it_says_what_python_says(
    records: list[tuple[bytes, int, int, int, int]], more_declared: int
) -> None:
    payload = b""
    for index, (timestamp, ahead, width, too_long, length_width) in enumerate(records):
        key, value, headers = padded(-1, width), padded(3, width) + b"abc", padded(0, width)
        record = b"\0" + timestamp + padded(index + ahead, width) + key + value + headers
        payload += padded(len(record) + too_long, length_width) + record
    agrees(of_records(payload, len(records) + more_declared), keys_required=False)


@NEEDS_LIBRARY
@pytest.mark.parametrize(("width", "is_sound"), [(1, True), (9, True), (10, True), (11, False)])
def test_a_varint_has_at_most_ten_bytes(width: int, is_sound: bool) -> None:
    for timestamp, delta in ((width, 1), (1, width)):
        record = b"\0" + padded(5, timestamp) + padded(0, delta) + varint(-1) + varint(-1) + varint(0)
        assert agrees(of_records(varint(len(record)) + record, 1), keys_required=False) == is_sound


@NEEDS_LIBRARY
def test_of_altered_batches_it_says_what_python_says_and_reads_nothing_behind_them() -> None:
    """The short version of `python -m tests.unit.native.mutations`."""
    chance = random.Random(1)
    sound = sum(agrees(mutated(chance, chance.choice(SEEDS)), keys_required=False) for _ in range(3000))
    assert sound > 200


@NEEDS_LIBRARY
def test_every_flipped_bit_that_the_checksum_covers_is_found() -> None:
    for at in range(17 * 8, len(SEEDS[0]) * 8):
        batch = bytearray(SEEDS[0])
        batch[at // 8] ^= 1 << at % 8
        assert not is_surely_sound(memoryview(batch), keys_required=False)


@NEEDS_LIBRARY
def test_a_batch_that_is_cut_or_has_something_behind_it_is_not_found_sound() -> None:
    whole = SEEDS[0]
    for batch in (*(whole[:size] for size in range(len(whole))), whole + b"\0", whole + whole):
        assert not is_surely_sound(memoryview(bytearray(batch)), keys_required=False)
    assert is_surely_sound(memoryview(bytearray(whole)), keys_required=False)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_is_packed_is_left_to_python(compression: int) -> None:
    batch = build_batch([BatchRecord(value=b"value")], compression=compression)
    assert is_accepted(batch)
    assert not is_surely_sound(memoryview(batch), keys_required=False)


@pytest.mark.parametrize("compression", range(1, 8))
def test_what_only_claims_to_be_packed_is_left_to_python(compression: int) -> None:
    batch = bytearray(SEEDS[0])
    batch[22] |= compression
    set_crc(memoryview(batch))
    assert not is_surely_sound(memoryview(batch), keys_required=False)


def test_what_cannot_be_written_to_is_left_to_python() -> None:
    assert not is_surely_sound(memoryview(SEEDS[0]), keys_required=False)


def test_the_buffer_can_be_resized_afterwards() -> None:
    batch = bytearray(SEEDS[0])
    with memoryview(batch) as view:
        is_surely_sound(view, keys_required=False)
    batch += b"more"


@pytest.mark.parametrize("missing", ["library", "instruction"])
def test_where_something_is_missing_everything_is_left_to_python(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "library":
        monkeypatch.setattr("headrace.native.library.library", lambda: None)
    else:
        monkeypatch.setattr(Library, "has_crc32c", False)
    soundness._calls.cache_clear()
    try:
        assert not is_surely_sound(memoryview(bytearray(SEEDS[0])), keys_required=False)
    finally:
        monkeypatch.undo()
        soundness._calls.cache_clear()
    found = library()
    is_there = found is not None and found.has_crc32c
    assert is_surely_sound(memoryview(bytearray(SEEDS[0])), keys_required=False) == is_there
