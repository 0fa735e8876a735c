"""Compression: round trips, and limits on decompression that do not depend on declared sizes."""

from __future__ import annotations

import gzip
import tracemalloc
from contextlib import suppress

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from headrace.wire.batches.compression import (
    GZIP,
    LZ4,
    NAMES,
    NONE,
    SNAPPY,
    STEP_BYTES,
    ZSTD,
    compress,
    decompress,
    decompress_pieces,
)

PACKED = sorted(set(NAMES) - {NONE})
BOMB_BYTES = 64 << 20


@pytest.mark.parametrize("codec", sorted(NAMES))
@pytest.mark.parametrize("data", [b"", b"x", b"ab" * 100_000], ids=len)
def test_data_survive_a_round_trip(codec: int, data: bytes) -> None:
    assert decompress(codec, memoryview(compress(codec, data)), len(data)) == data


@given(st.binary(max_size=2000), st.sampled_from(PACKED))
def test_garbage_raises_a_typed_error_or_yields_little(data: bytes, codec: int) -> None:
    with suppress(CorruptMessage, MessageTooLarge):
        assert len(decompress(codec, memoryview(data), 10_000)) <= 10_000


@pytest.mark.parametrize("codec", PACKED)
def test_every_truncation_is_detected(codec: int) -> None:
    whole = bytes(range(256)) * 300
    packed = memoryview(compress(codec, whole))
    for length in (*range(1, 100), *range(100, len(packed), 997), len(packed) - 1):
        try:
            unpacked = decompress(codec, packed[:length], len(whole))
        except (CorruptMessage, MessageTooLarge):
            continue
        # These formats can end undetected between two blocks; the number of records detects it.
        assert codec in (SNAPPY, ZSTD)
        assert whole.startswith(unpacked)
        assert len(unpacked) < len(whole)


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_exact(codec: int) -> None:
    packed = memoryview(compress(codec, bytes(200_000)))
    assert len(decompress(codec, packed, 200_000)) == 200_000
    with pytest.raises(MessageTooLarge):
        decompress(codec, packed, 199_999)


@pytest.mark.parametrize("codec", PACKED)
def test_decompression_bombs_stop_at_the_limit(codec: int) -> None:
    bomb = memoryview(compress(codec, bytes(BOMB_BYTES)))
    tracemalloc.start()
    with pytest.raises(MessageTooLarge):
        decompress(codec, bomb, 1 << 20)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < (4 << 20) + 2 * len(bomb)


def test_the_declared_size_of_a_zstd_frame_is_not_trusted() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(BOMB_BYTES))
    assert zstandard.get_frame_parameters(bomb).content_size == BOMB_BYTES
    with pytest.raises(MessageTooLarge):
        decompress(ZSTD, memoryview(bomb), 1 << 20)


def test_a_zstd_window_is_limited_as_in_kafka() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = bytearray(writer.compress(b"small") + writer.flush())
    assert decompress(ZSTD, memoryview(packed), 100) == b"small"
    window_descriptor = 5  # after the magic and the frame flags; its upper five bits are the exponent from 1 KiB
    assert packed[window_descriptor] == (27 - 10) << 3
    packed[window_descriptor] = (28 - 10) << 3
    with pytest.raises(CorruptMessage):
        decompress(ZSTD, memoryview(packed), 100)


@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_bytes_after_the_compressed_data_are_rejected(codec: int) -> None:
    packed = compress(codec, b"data")
    for more in (b"\0", b"more", packed):
        with pytest.raises(CorruptMessage):
            decompress(codec, memoryview(packed + more), 100)


def test_a_raw_snappy_block_that_declares_gigabytes_is_not_allocated() -> None:
    tracemalloc.start()
    for bound, error in ((1 << 20, MessageTooLarge), (1 << 32, CorruptMessage)):
        with pytest.raises(error):
            decompress(SNAPPY, memoryview(b"\xff\xff\xff\xff\x0f\x00abc"), bound)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000


def test_raw_and_framed_snappy_are_decompressed() -> None:
    data = b"snappy " * 10_000
    assert decompress(SNAPPY, memoryview(bytes(cramjam.snappy.compress_raw(data))), len(data)) == data
    assert compress(SNAPPY, data).startswith(b"\x82SNAPPY\0")


def test_a_snappy_block_longer_than_the_data_is_corrupt() -> None:
    packed = bytearray(compress(SNAPPY, b"abc"))
    for length in (-1, 0x7FFFFFFF):
        packed[16:20] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptMessage):
            decompress(SNAPPY, memoryview(packed), 100)


def test_settings_of_other_writers_are_supported() -> None:
    data = b"headrace " * 50_000
    assert decompress(GZIP, memoryview(gzip.compress(data, 1)), len(data)) == data
    for linked in (True, False):
        packed = lz4.frame.compress(data, block_linked=linked, content_checksum=True, block_checksum=True)
        assert decompress(LZ4, memoryview(packed), len(data)) == data
    streaming = zstandard.ZstdCompressor(level=19, write_content_size=False, write_checksum=True).compressobj()
    packed = streaming.compress(data) + streaming.flush()
    assert decompress(ZSTD, memoryview(packed), len(data)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_decompression_steps_are_small(codec: int) -> None:
    packed = memoryview(compress(codec, bytes(1 << 20)))
    sizes = [len(step) for step in decompress_pieces(codec, packed, 1 << 20)]
    assert sum(sizes) == 1 << 20
    assert max(sizes) <= STEP_BYTES


def test_an_unknown_compression_is_rejected() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionType):
            compress(codec, b"x")
        with pytest.raises(UnsupportedCompressionType):
            decompress(codec, memoryview(b"x"), 10)
