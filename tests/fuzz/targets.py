"""The fuzz targets: one function for each parser of foreign bytes.

Each accepts any bytes and returns; an error of the `HeadraceError` family counts as a return. Any other exception is a
bug, and so is output above the limit. Atheris (`python -m tests.fuzz TARGET`) and Hypothesis
(`test_fuzz.py`) drive the same functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import cast
from uuid import UUID

from tests.fuzz.http_reader import http
from tests.unit.storage.log_harness import NO_DERIVED_STATE

from headrace.model.errors import HeadraceError
from headrace.native.soundness import is_surely_sound
from headrace.storage.log.log import Log, LogSlice
from headrace.storage.store.log_store import LogConfig, Opening, open_store
from headrace.testkit.world import World
from headrace.wire.apis import APIS
from headrace.wire.batches.batch import HEADER_SIZE, check_crc, parse_header, read_records, set_crc
from headrace.wire.batches.compression import decompress, decompress_pieces
from headrace.wire.batches.record_checks import check_records
from headrace.wire.codec.codec import decode, encode
from headrace.wire.codec.header import parse_request_header
from headrace.wire.codec.schema import Chunk

Target = Callable[[bytes], None]

UNPACKED_MAX = 2**20
TOPIC_ID = UUID(int=7)

REQUESTS = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


def frame(data: bytes) -> None:
    """A request frame: the header, then the body in the version of the header."""
    with suppress(HeadraceError):
        header, position = parse_request_header(memoryview(data))
        api = APIS.get(header.api_key)
        if api is not None and api.knows(header.api_version):
            decode(api.request, header.api_version, memoryview(data), position)


def request(data: bytes) -> None:
    """Two bytes choose the API and version, the rest is the body. A decoded message must survive a round trip."""
    if len(data) < 2:
        return
    api, version = REQUESTS[int.from_bytes(data[:2], "big") % len(REQUESTS)]
    with suppress(HeadraceError):
        message = decode(api.request, version, memoryview(data), 2)
        again = joined(encode(message, version))
        assert joined(encode(decode(api.request, version, memoryview(again)), version)) == again


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(cast("list[bytes]", chunks))


def response(data: bytes) -> None:
    """The client's side: a response of a malicious broker."""
    if len(data) < 2:
        return
    api, version = REQUESTS[int.from_bytes(data[:2], "big") % len(REQUESTS)]
    with suppress(HeadraceError):
        decode(api.response, version, memoryview(data), 2)


def batch(data: bytes) -> None:
    """A batch of a producer."""
    with suppress(HeadraceError):
        header = parse_header(data)
        sealed = check_crc(memoryview(data), header)
        check_records(sealed, header, keys_required=True, size_bytes_max=UNPACKED_MAX)


def sealed_batch(data: bytes) -> None:
    """Like `batch`, with corrected length and checksum, so that the records are reached. Both readers must agree."""
    if len(data) <= HEADER_SIZE:
        return
    righted = _righted(data)
    header = parse_header(righted)
    sealed = check_crc(memoryview(righted), header)
    accepted = False
    with suppress(HeadraceError):
        check_records(sealed, header, size_bytes_max=UNPACKED_MAX)
        accepted = True
    try:
        count = sum(1 for _ in read_records(memoryview(righted), header, UNPACKED_MAX))
        assert not accepted or count == header.record_count
    except HeadraceError:
        assert not accepted, "a reader must be able to read a batch that the broker accepts"


def _righted(data: bytes) -> bytearray:
    righted = bytearray(data)
    righted[8:12] = (len(data) - 12).to_bytes(4, "big")
    righted[16] = 2
    set_crc(memoryview(righted))
    return righted


def soundness(data: bytes) -> None:
    """The first byte asks for keys or not, the rest is a batch, taken as it came and put right: what the library finds
    sound, Python accepts."""
    for whole in (bytearray(data[1:]), _righted(data[1:]) if len(data) > HEADER_SIZE else bytearray()):
        keys_required = data[:1] == b"k"
        if is_surely_sound(memoryview(whole), keys_required=keys_required):
            header = parse_header(whole)
            sealed = check_crc(memoryview(whole), header)
            check_records(sealed, header, keys_required=keys_required, size_bytes_max=UNPACKED_MAX)


def compression(data: bytes) -> None:
    """The first byte chooses the codec; the output never exceeds the limit."""
    if not data:
        return
    codec = data[0] % 8
    with suppress(HeadraceError):
        unpacked = sum(len(step) for step in decompress_pieces(codec, memoryview(data)[1:], UNPACKED_MAX))
        assert unpacked <= UNPACKED_MAX
    with suppress(HeadraceError):
        assert len(decompress(codec, memoryview(data)[1:], UNPACKED_MAX)) <= UNPACKED_MAX


def recovery(data: bytes) -> None:
    """A segment file with any content: the log opens with the longest valid prefix, twice with the same result."""
    world = World(seed=1)
    folder = f"data/logs/{TOPIC_ID.hex}-0"
    world.disk.make_directory(folder)
    world.disk.write_atomically(f"{folder}/{0:020}.log", data)
    first = world.run(_recovered(world))
    world.reboot(keep_page_cache=True)
    assert world.run(_recovered(world)) == first
    world.close()
    assert data.startswith(first) or not first


async def _recovered(world: World) -> bytes:
    """Open the log and return every byte that it serves; check that these are complete batches in order."""
    store = await open_store(world.disk, "data", world.clock)
    await store.open_all(lambda *_: Opening(LogConfig(), NO_DERIVED_STATE))
    log = store.logs[TOPIC_ID, 0]
    served = await _read_all(log) if log.quarantined is None else b""
    position, offset = 0, log.start_offset
    while position < len(served):
        header = parse_header(served, position)
        check_crc(memoryview(served)[position : position + header.size_bytes], header)
        assert header.base_offset == offset
        position, offset = position + header.size_bytes, header.last_offset + 1
    assert position == len(served)
    assert log.quarantined is not None or offset == log.end_offset
    return served


async def _read_all(log: Log) -> bytes:
    served = bytearray()
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, UNPACKED_MAX, log.end_offset)
        if isinstance(piece, LogSlice):
            served += piece.bytes()
            piece.release()
        else:
            served += await piece.load()
        assert piece.next_offset > offset
        offset = piece.next_offset
        await asyncio.sleep(0)
    return bytes(served)


TARGETS: dict[str, Target] = {
    "frame": frame,
    "request": request,
    "response": response,
    "batch": batch,
    "sealed_batch": sealed_batch,
    "soundness": soundness,
    "compression": compression,
    "recovery": recovery,
    "http": http,
}
