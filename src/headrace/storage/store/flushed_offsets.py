"""The file `flushed-offsets` of a data folder: how far each log was synced.

Written after every flush, itself never synced. After kill -9 it is exact; after a power cut each slot holds
some earlier value, or is torn and does not count. So it is a lower bound: a log that is damaged below it has
lost what was promised.

    slot   16 bytes topic id  i32 partition  i64 flushed offset  i64 segment base  i64 position  u32 crc
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk, File

logger = logging.getLogger(__name__)

NAME = "flushed-offsets"
_KEY = Struct(">16si")
_POINT = Struct(">qqq")
_CRC = Struct(">I")
SLOT_BYTES = _KEY.size + _POINT.size + _CRC.size

LogKey = tuple[UUID, int]


class FlushedPoint(NamedTuple):
    offset: int
    segment_base: int
    position: int


class FlushedOffsets:
    """One slot per log; a slot that is given back is used again."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._file: File = disk.open(f"{folder}/{NAME}", create=True)
        self._found: dict[LogKey, tuple[int, FlushedPoint]] = {}
        self._free: list[int] = []
        self._slots = self._file.size() // SLOT_BYTES
        self._load(self._file.pread(self._file.size(), 0))

    def claim(self, key: LogKey) -> FlushedSlot:
        """This log's slot; its point is what was found at start, None if nothing was."""
        found = self._found.pop(key, None)
        if found is not None:
            return FlushedSlot(self._file, key, *found)
        if self._free:
            return FlushedSlot(self._file, key, self._free.pop(), None)
        self._slots += 1
        return FlushedSlot(self._file, key, self._slots - 1, None)

    def point(self, key: LogKey) -> FlushedPoint | None:
        """What was found at start, of a log that was not opened."""
        found = self._found.get(key)
        return None if found is None else found[1]

    def restore(self, key: LogKey, point: FlushedPoint) -> None:
        """The log is back; `claim` finds the point."""
        slot = self.claim(key)
        slot.record(*point)
        self._found[key] = (slot.number, point)

    def release(self, slot: FlushedSlot) -> None:
        """The log is gone. `sync` before its files are: a new log of this key must not find the old point."""
        self._file.pwrite(bytes(SLOT_BYTES), slot.number * SLOT_BYTES)
        self._free.append(slot.number)

    def forget(self, key: LogKey) -> None:
        """As `release`, for a log that was not opened."""
        self.release(self.claim(key))

    def sync(self) -> None:
        """Blocks."""
        self._file.sync()

    def _load(self, data: bytes) -> None:
        for at in range(self._slots):
            number = at
            slot = data[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]
            body, (crc,) = slot[: -_CRC.size], _CRC.unpack(slot[-_CRC.size :])
            if crc32(body) != crc or not any(body):
                self._free.append(number)
                continue
            topic_id, partition = _KEY.unpack_from(body)
            key = (UUID(bytes=topic_id), partition)
            point = FlushedPoint(*_POINT.unpack_from(body, _KEY.size))
            if key in self._found:  # a slot that was given back, but not durably
                self._free.append(number)
                point = min(point, self._found[key][1])
                number = self._found[key][0]
            self._found[key] = (number, point)


class FlushedSlot:
    __slots__ = ("_file", "_held", "_key", "_offset", "number", "point")

    def __init__(self, file: File, key: LogKey, number: int, point: FlushedPoint | None) -> None:
        self._file = file
        self._key = _KEY.pack(key[0].bytes, key[1])
        self.number = number
        self.point = point
        self._offset = point.offset if point is not None else 0
        self._held = False

    def record(self, offset: int, segment_base: int, position: int) -> None:
        if self._held:
            return
        try:
            self._write(offset, segment_base, position)
        except StorageFailure as error:
            # The old value stays, which is still a lower bound.
            logger.warning("flushed offset not recorded: %s", error)

    @contextmanager
    def lowered(self, offset: int, segment_base: int, position: int) -> Iterator[None]:
        """While the log is being cut: promise no more than this, whatever flush ends meanwhile. `sync` it first."""
        if self._offset > offset:
            self._write(offset, segment_base, position)
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def sync(self) -> None:
        """Blocks."""
        self._file.sync()

    def _write(self, offset: int, segment_base: int, position: int) -> None:
        body = self._key + _POINT.pack(offset, segment_base, position)
        self._file.pwrite(body + _CRC.pack(crc32(body)), self.number * SLOT_BYTES)
        self._offset = offset
