"""The gaps of a segment that was copied from a leader whose log is compacted, written down as they come.

The file `<base>.copied-gaps` stands for what `<base>.gaps` is to a cleaned segment (see gaps): a batch must begin where
the one before it ends, or where the gaps say, so that a flipped bit in an offset is found. A gap is written before the
batch behind it, and both are synced before that batch counts as flushed. A gap whose batch was lost, or cut off, is
cut off as well before anything else may follow there.

    entry   i64 offset behind a batch  i64 base offset of the batch that comes next  u32 crc

The first entry that is torn, or does not grow, ends the list: a batch that needed it is then found to be damaged.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from zlib import crc32

from headrace.runtime.disk import Disk, File
from headrace.storage.gaps import GapList

_PAIR = Struct(">qq")
_ENTRY = Struct(">16sI")


class CopiedGaps(GapList):
    __slots__ = ("_disk", "_file", "path", "unsynced")

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._file: File | None = None
        self.path = path
        self.unsynced = False  # whether the file has changed since it was last synced

    @classmethod
    def read(cls, disk: Disk, path: str) -> CopiedGaps:
        """As far as the file is whole. Blocks."""
        gaps, data, last = cls(disk, path), disk.read(path), -1
        for pair, crc in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            end_offset, base_offset = _PAIR.unpack(pair)
            if crc32(pair) != crc or not last < end_offset < base_offset:
                break
            gaps._starts.append(base_offset)
            gaps._ends.append(end_offset)
            last = base_offset
        return gaps

    def __len__(self) -> int:
        return len(self._ends)

    def note(self, pairs: list[tuple[int, int]]) -> None:
        """After the batches that end there, those come that begin there; not yet durably.

        Raises DiskFull, and then nothing was noted, or DiskFailed.
        """
        packed = [_PAIR.pack(*pair) for pair in pairs]
        file = self.file(create=True)
        self.unsynced = True  # also when it fails: a part may have been written, and cut off again in memory only
        file.append([b"".join(_ENTRY.pack(pair, crc32(pair)) for pair in packed)])
        self._starts.extend(start for _, start in pairs)  # first: see GapList
        self._ends.extend(end for end, _ in pairs)

    def take_back(self, count: int) -> None:
        """The batches behind the last gaps were not appended after all."""
        kept = len(self) - count
        self._ends, self._starts = self._ends[:kept], self._starts[:kept]
        self.unsynced = True
        self.file().truncate(kept * _ENTRY.size)

    def cut(self, end_offset: int) -> CopiedGaps:
        """These gaps if the segment's last batch ended before `end_offset`; to be saved."""
        shorter = CopiedGaps(self._disk, self.path)
        kept = bisect_left(self._ends, end_offset)
        shorter._ends, shorter._starts = self._ends[:kept], self._starts[:kept]
        return shorter

    def save(self) -> None:
        """Make the file hold these gaps and nothing else, durably. Blocks.

        All of it is written again: if a sync of it failed before a restart, the kernel takes its pages for clean.
        """
        file, size = self.file(), len(self) * _ENTRY.size
        if file.size() != size:
            file.truncate(size)
        file.pwrite(file.pread(size, 0), 0)
        file.sync()

    def file(self, *, create: bool = False) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=create)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
