"""The file `flushed-offsets` of a data folder: the flushed offset of each log.

It is written after every flush, but not synced. After kill -9 it is exact. After a power failure each slot holds some
earlier value, or is torn and ignored. So it is a lower bound: a log that is damaged below it has lost acknowledged
data.

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
    """One slot per log; released slots are reused."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._file: File = disk.open(f"{folder}/{NAME}", create=True)
        self._found: dict[LogKey, tuple[int, FlushedPoint]] = {}
        self._free: list[int] = []
        self._slots = self._file.size() // SLOT_BYTES
        self._load(self._file.pread(self._file.size(), 0))

    def claim(self, key: LogKey) -> FlushedSlot:
        """The slot of a log. Its point is the one found at start, or None."""
        found = self._found.pop(key, None)
        if found is not None:
            return FlushedSlot(self._file, key, *found)
        if self._free:
            return FlushedSlot(self._file, key, self._free.pop(), None)
        self._slots += 1
        return FlushedSlot(self._file, key, self._slots - 1, None)

    def point(self, key: LogKey) -> FlushedPoint | None:
        """The point found at start, for a log that was not opened."""
        found = self._found.get(key)
        return None if found is None else found[1]

    def restore(self, key: LogKey, point: FlushedPoint) -> None:
        """Store the point of a log that was moved back, for `claim` to return."""
        slot = self.claim(key)
        slot.record(*point)
        self._found[key] = (slot.number, point)

    def release(self, slot: FlushedSlot) -> None:
        """Free the slot of a deleted log. Call `sync` before its files are removed: a new log of this key must not find
        the old point."""
        self._file.pwrite(bytes(SLOT_BYTES), slot.number * SLOT_BYTES)
        self._free.append(slot.number)

    def forget(self, key: LogKey) -> None:
        """Free the slot of a log that was not opened."""
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
            if key in self._found:  # a slot that was released, but not durably
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
            # The slot keeps its old value, which is still a lower bound.
            logger.warning("flushed offset not recorded error=%s", error)

    @contextmanager
    def lowered(self, offset: int, segment_base: int, position: int) -> Iterator[None]:
        """While the log is truncated: record this point, and ignore flushes that complete meanwhile. Call `sync` before
        the log is cut."""
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
