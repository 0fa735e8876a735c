"""From offsets to positions: a hint of the index, then a short walk over batch headers."""

from __future__ import annotations

from headrace.runtime.disk import File
from headrace.storage.index import NotHot
from headrace.storage.scan import BadBatch, headers
from headrace.storage.segment import Segment

PAGE_BYTES = 4096
PLACES_MAX = 64


class Places(dict[int, tuple[Segment, int]]):
    """Where the batches of some offsets begin: whoever reads on from a slice needs no lookup."""

    __slots__ = ()

    def note(self, offset: int, segment: Segment, position: int) -> None:
        if offset not in self and len(self) >= PLACES_MAX:
            del self[next(iter(self))]
        self[offset] = (segment, position)

    def forget(self, doomed: list[Segment]) -> None:
        for offset in [offset for offset, (segment, _) in self.items() if segment in doomed]:
            del self[offset]


def find_batch(segment: Segment, file: File, offset: int, limit: int, *, hot: bool = False) -> int:
    """The position of the batch that holds `offset` or, where that lies in a gap, of the next one.

    `hot`: raise NotHot instead of waiting for the disk. Raises BadBatch if index and log do not agree.
    """
    hint = segment.index.floor(offset - segment.base_offset, hot=hot)
    position = hint[1] if hint else 0
    for at, header in headers(file, position, limit, segment.gaps, hot=hot):
        if hint and at == position and header.last_offset != segment.base_offset + hint[0]:
            raise BadBatch(at, f"the index says that offset {segment.base_offset + hint[0]} is here")
        if header.last_offset >= offset:
            return at
    if hot:
        raise NotHot
    raise BadBatch(limit, f"the segment ends before offset {offset}")


def find_cut(segment: Segment, file: File, position: int, wanted: int, limit: int) -> tuple[int, int]:
    """Where to end a slice that begins at `position`, and the offset of the batch there.

    That is behind the last whole batch that ends by `wanted`, or else behind the first. Raises NotHot.
    """
    hint = segment.index.floor(wanted, column=1, hot=True)
    start = hint[1] if hint and hint[1] > position else position
    end = next_offset = -1
    for at, header in headers(file, start, limit, segment.gaps, hot=True):
        end, next_offset = at + header.size_bytes, header.next_offset
        if end > wanted and at > position:
            return at, header.base_offset
    if end < limit:
        raise NotHot
    return end, next_offset


def is_hot(file: File, position: int, limit: int) -> bool:
    """Whether the slice is, by its first and last byte, in the page cache."""
    if file.pread_hot(1, limit - 1) is None:
        return False
    return limit - position <= PAGE_BYTES or file.pread_hot(1, position) is not None


def reindexed(segment: Segment, file: File, limit: int, index_interval_bytes: int) -> Segment:
    """A twin of the segment with indexes made anew, in memory. May wait for the disk; raises BadBatch."""
    twin = segment.twin()
    for position, header in headers(file, 0, limit, segment.gaps):
        twin.note(header, header.last_offset, position, index_interval_bytes)
    twin.index_time()
    return twin
