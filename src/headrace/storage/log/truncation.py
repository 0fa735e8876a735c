"""The blocking steps of `Log.truncate` and `Log.reset`. They run in disk threads and can be repeated after a crash.

- Recovery must never expect more than what is left. So the flushed point, the checkpoints and the gaps of the segment
  are lowered durably before any file is cut.
- A reset is decided by the file `restart` in the log's folder, written atomically: from then on all other files are
  void, and recovery finishes the reset. Before that the old log is valid; only its flushed point was lowered.
- A file gets another name before it is removed, so that a half-removed segment never looks like a whole one.
"""

from __future__ import annotations

from headrace.runtime.disk import Disk
from headrace.storage.compaction.swap import DRAFTS
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import Checkpoint, decode_offset, encode_offset, write_start_offset
from headrace.storage.segments.scan import ReplayedBatch, headers, read_replayed_batch
from headrace.storage.segments.segment import DELETED, GAPS, Segment
from headrace.storage.store.flushed_offsets import FlushedSlot

RESTART = "restart"


def twin_below(segment: Segment, offset: int, index_interval_bytes: int) -> tuple[Segment, int]:
    """A twin of the segment with the batches that end at or below `offset`, and the end of the last of them."""
    twin, end_offset = segment.twin(), segment.base_offset
    if segment.size:
        for position, header in headers(segment.open(), 0, segment.size, segment.gaps):
            if header.last_offset >= offset:
                break
            twin.add_batch(header, header.last_offset, position, index_interval_bytes)
            end_offset = header.next_offset
    if segment.cleaned is not None:
        twin.gaps = segment.cleaned.cut(end_offset, end_offset)
    elif segment.copied is not None:
        twin.gaps = segment.copied.cut(end_offset)
    return twin, end_offset


def lower_flushed_point(disk: Disk, slot: FlushedSlot, segment: Segment, kept: Segment, offset: int) -> None:
    """Make durable that the log ends at `offset`, before `segment` is cut to what is `kept` of it."""
    slot.sync()
    checkpoints.remove_checkpoints_above(disk, segment.folder, offset)
    if kept.size and kept.cleaned is not None:
        disk.write_atomically(segment.path_of(GAPS), kept.cleaned.encode())
    elif kept.size and kept.copied is not None:
        kept.copied.save()


def remove_files(disk: Disk, folder: str, removed: list[Segment], cut: Segment | None = None) -> None:
    """Remove the files of these segments, and make it durable, also what was cut off one that stays."""
    if cut is not None:
        cut.open().sync()
    paths = [path for segment in removed for path in segment.paths() if disk.exists(path)]
    for path in paths:
        disk.rename(path, path + DELETED)
    for path in paths:
        disk.remove(path + DELETED)
    disk.sync_directory(folder)


def read_tail(disk: Disk, folder: str, segments: list[Segment]) -> tuple[Checkpoint | None, list[ReplayedBatch]]:
    """The newest checkpoint, and every batch after it."""
    checkpoint = checkpoints.newest_checkpoint(disk, folder, disk.list(folder))
    begin = checkpoint.offset if checkpoint else 0
    tail = [
        read_replayed_batch(segment.open(), position, header)
        for segment, following in zip(segments, [*segments[1:], None], strict=True)
        if following is None or following.base_offset > begin
        if segment.size
        for position, header in headers(segment.open(), 0, segment.size, segment.gaps)
        if header.base_offset >= begin
    ]
    return checkpoint, tail


def commit_reset(disk: Disk, folder: str, slot: FlushedSlot, offset: int) -> None:
    slot.sync()
    disk.write_atomically(f"{folder}/{RESTART}", encode_offset(offset))


def resume_reset(disk: Disk, folder: str) -> bool:
    """Finish a reset that was committed; False if the file that committed it is damaged."""
    offset = decode_offset(disk.read(f"{folder}/{RESTART}"))
    if offset is None:
        return False
    for name in disk.list(folder):
        if name not in (RESTART, DRAFTS):  # drafts are void in any case, and a compaction may still be writing them
            disk.remove(f"{folder}/{name}")
    write_start_offset(disk, folder, offset)  # this also makes the removals durable
    disk.remove(f"{folder}/{RESTART}")
    disk.sync_directory(folder)
    return True
