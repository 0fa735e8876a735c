"""The five compressions of record batches, and how far they are trusted: not at all.

A few bytes can stand for gigabytes, so nothing is unpacked but in steps that are counted against a bound.
What a frame says about its own size is believed only when it says too much.

A codec's library is imported with the first block that needs it, so that no start waits for those that nobody uses.
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
# Kafka's own limit, which level 22 needs. The window is reserved, but takes memory only as output fills it.
ZSTD_WINDOW_BYTES_MAX: Final = 1 << 27

# The framing of the Java library: a magic, two version numbers, then blocks behind their lengths.
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

        # Kafka's own reader, and so every Java client, refuses blocks that lean on each other.
        return bytes(lz4.frame.compress(data, store_size=False, block_linked=False))
    if codec == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor().compress(data)
    raise UnsupportedCompressionType(f"compression {codec} is not known")


def decompress(codec: int, data: memoryview, size_bytes_max: int) -> bytes:
    """Unpack all of it, or raise `MessageTooLarge` before more than the bound has been unpacked."""
    return b"".join(decompress_pieces(codec, data, size_bytes_max))


def decompress_pieces(codec: int, data: memoryview, size_bytes_max: int) -> Iterator[bytes]:
    """Unpack in pieces: of a step's size, or of a snappy block's. Nothing bounds what was not packed."""
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
        # No producer writes a second member, and a million tiny ones would take for ever.
        raise CorruptMessage("bytes behind the gzip data")


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
        raise CorruptMessage("bytes behind the lz4 frame")


def _zstd_steps(data: memoryview) -> Iterator[bytes]:
    """The reader does not tell a frame that was cut short from a whole one; the count of records does."""
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
            raise CorruptMessage("the snappy data end inside a block's length")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise CorruptMessage(f"a snappy block of {length} bytes where {len(data) - position} remain")
        step = _unpack_snappy(data[position : position + length], left)
        left -= len(step)
        position += length
        yield step


def _unpack_snappy(block: memoryview, size_bytes_max: int) -> bytes:
    """Unpack one raw block, whose preamble tells its size; a lie about it is found by the unpacking."""
    try:
        size_bytes, _ = read_uvarint(block, 0)
    except (IndexError, MalformedFrame):
        raise CorruptMessage("the snappy data have no preamble") from None
    if size_bytes > size_bytes_max:
        raise MessageTooLarge(f"a snappy block unpacks to more than {size_bytes_max} bytes")
    if size_bytes > 64 * len(block):
        # Snappy cannot pack better than this, so do not even allocate.
        raise CorruptMessage(f"a snappy block of {len(block)} bytes claims {size_bytes}")
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
