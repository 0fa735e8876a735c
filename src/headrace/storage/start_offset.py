"""The file `start-offset` of a log: nothing below it counts any more, whichever files survive."""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from headrace.runtime.disk import Disk

START_OFFSET = "start-offset"
_START = Struct(">qI")


def write_start_offset(disk: Disk, folder: str, offset: int) -> None:
    """Durably. Blocks."""
    disk.write_atomically(f"{folder}/{START_OFFSET}", _START.pack(offset, crc32(b"%d" % offset)))


def read_start_offset(disk: Disk, folder: str) -> int:
    data = disk.read(f"{folder}/{START_OFFSET}")
    if len(data) != _START.size:
        return 0
    offset, crc = _START.unpack(data)
    return int(offset) if crc == crc32(b"%d" % offset) else 0
