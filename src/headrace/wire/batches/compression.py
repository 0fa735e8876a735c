"""Compress and decompress record batches: gzip, snappy, lz4 and zstd.

- Compressed data are untrusted: a few bytes can expand to gigabytes. Therefore data are decompressed in steps, which
  are counted against a limit. The size that a frame declares is used only to reject frames that exceed the limit.
- The library of a codec is imported on first use, so that it does not slow down startup.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from headrace.model.errors import CorruptMessage, MalformedFrame, MessageTooLarge, UnsupportedCompressionType
from headrace.wire.codec.primitives import read_uvarint

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

STEP_BYTES: Final = 1 << 18
# Kafka's limit, which level 22 requires. The window is address space, and uses memory only as output fills it.
ZSTD_WINDOW_BYTES_MAX: Final = 1 << 27

# The framing of the Java library: a magic, two version numbers, then blocks, each after its length.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LENGTH: Final = Struct(">i")


def compress(codec: int, data: bytes) -> bytes:
    if codec == NONE:
        return data
    if codec == GZIP:
        import gzip

        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        import lz4.frame  # type: ignore[import-untyped]

        # Kafka's reader, and so every Java client, rejects linked blocks.
        return bytes(lz4.frame.compress(data, store_size=False, block_linked=False))
    if codec == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor().compress(data)
    raise UnsupportedCompressionType(f"compression {codec} is not known")


def decompress(codec: int, data: memoryview, size_bytes_max: int) -> bytes:
    """Decompress all data; raise `MessageTooLarge` if they are larger than the limit."""
    return b"".join(decompress_pieces(codec, data, size_bytes_max))


def decompress_pieces(codec: int, data: memoryview, size_bytes_max: int) -> Iterator[bytes]:
    """Decompress in pieces of a step or of a snappy block. The limit does not apply to uncompressed data."""
    if codec == NONE:
        yield bytes(data)
        return
    size_bytes = 0
    for step in _steps(codec, data, size_bytes_max):
        size_bytes += len(step)
        if size_bytes > size_bytes_max:
            raise MessageTooLarge(f"a {NAMES[codec]} block unpacks to more than {size_bytes_max} bytes")
        yield step


def _steps(codec: int, data: memoryview, size_bytes_max: int) -> Iterator[bytes]:
    if codec == GZIP:
        return _gzip_steps(data)
    if codec == SNAPPY:
        return _snappy_steps(data, size_bytes_max)
    if codec == LZ4:
        return _lz4_steps(data)
    if codec == ZSTD:
        return _zstd_steps(data)
    raise UnsupportedCompressionType(f"compression {codec} is not known")


def _gzip_steps(data: memoryview) -> Iterator[bytes]:
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    rest = bytes(data)
    while not unpacker.eof:
        try:
            step = unpacker.decompress(rest, STEP_BYTES)
        except zlib.error as error:
            raise CorruptMessage(f"bad gzip data: {error}") from None
        rest = unpacker.unconsumed_tail
        if not step and not rest and not unpacker.eof:
            raise CorruptMessage("the gzip data end too early")
        yield step
    if unpacker.unused_data:
        # Producers write one member only; decompressing a million tiny ones would take too long.
        raise CorruptMessage("unexpected bytes after the gzip data")


def _lz4_steps(data: memoryview) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    rest = bytes(data)
    while not unpacker.eof:
        try:
            step = unpacker.decompress(rest, STEP_BYTES)
        except RuntimeError as error:
            raise CorruptMessage(f"bad lz4 data: {error}") from None
        rest = b""
        if not step and not unpacker.eof and unpacker.needs_input:
            raise CorruptMessage("the lz4 data end too early")
        yield step
    if unpacker.unused_data:
        raise CorruptMessage("unexpected bytes after the lz4 frame")


def _zstd_steps(data: memoryview) -> Iterator[bytes]:
    """The reader does not detect a truncated frame; the caller detects it by the number of records."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    reader = unpacker.stream_reader(data, read_across_frames=True)
    try:
        while step := reader.read(STEP_BYTES):
            yield step
    except zstandard.ZstdError as error:
        raise CorruptMessage(f"bad zstd data: {error}") from None


def _snappy_steps(data: memoryview, size_bytes_max: int) -> Iterator[bytes]:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield _unpack_snappy(data, size_bytes_max)
        return
    position = len(_XERIAL_HEADER)
    left = size_bytes_max
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptMessage("the snappy data end within the length of a block")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise CorruptMessage(f"a snappy block has {length} bytes, but only {len(data) - position} remain")
        step = _unpack_snappy(data[position : position + length], left)
        left -= len(step)
        position += length
        yield step


def _unpack_snappy(block: memoryview, size_bytes_max: int) -> bytes:
    """Decompress one raw block. Its preamble declares the size; the library detects a wrong one."""
    try:
        size_bytes, _ = read_uvarint(block, 0)
    except (IndexError, MalformedFrame):
        raise CorruptMessage("the snappy data have no preamble") from None
    if size_bytes > size_bytes_max:
        raise MessageTooLarge(f"a snappy block unpacks to more than {size_bytes_max} bytes")
    if size_bytes > 64 * len(block):
        # More than the maximum compression ratio of snappy: do not allocate memory for it.
        raise CorruptMessage(f"a snappy block of {len(block)} bytes declares a size of {size_bytes} bytes")
    import cramjam

    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"bad snappy data: {error}") from None


def _compress_xerial(data: bytes) -> bytes:
    import cramjam

    out = bytearray(_XERIAL_HEADER)
    for position in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[position : position + _XERIAL_BLOCK_BYTES]))
        out += _LENGTH.pack(len(block)) + block
    return bytes(out)
