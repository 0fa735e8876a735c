"""Cut a log at either end, or empty it so that it begins at another offset.

What is promised gone is durably gone before it is answered.

start   the start offset is made durable first, then whole segments below it are removed
end     checkpoints, the flushed point and the gaps of the segment are lowered durably first, so that recovery
        expects no more than what is left; then the files are cut

A cut log ends with a batch, never in a gap: a follower, who gets nothing but batches, could not come to an end there.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk
from headrace.runtime.tasks import run_to_completion
from headrace.storage.compaction.swap import DRAFTS
from headrace.storage.log.checkpoint import write_start_offset

if TYPE_CHECKING:
    from headrace.storage.log.log import Log
import logging
from typing import TYPE_CHECKING

from headrace.model.errors import OffsetOutOfRange
from headrace.storage.errors import CorruptBatch
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import Checkpoint
from headrace.storage.log.derived_state import forget_dropped_transactions
from headrace.storage.segments.scan import BadBatch, ReplayedBatch, headers, read_replayed_batch
from headrace.storage.segments.segment import DELETED, GAPS, Segment

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


# Emptying a log so that it begins at another offset: for a follower that has nothing in common with its leader.
#
# The file `restart` in the log's folder, written atomically, is the decision: from then on all the other files are
# void, whatever crash comes, and whoever finds it removes them. Before that the old log stands, and only its flushed
# point is lowered, which must not promise what the new log will not have.


RESTART = "restart"
_DECISION = Struct(">qI")


async def restart_at(log: Log, offset: int) -> None:
    await run_to_completion(_restart_at(log, offset))


async def _restart_at(log: Log, offset: int) -> None:
    async with log.maintenance_lock():
        log.ensure_usable()
        with log.slot.lowered(offset, 0, 0):
            try:
                await log.disk.run(_write_decision, log, offset)
            except StorageFailure as error:
                if log.disk.exists(f"{log.folder}/{RESTART}"):
                    log.fail(error)  # nobody knows whether the decision is durable: the next start will find out
                raise
            log.ensure_usable()  # else the decision stands, and the next start carries it out
            log.reset_to(offset)
        try:
            await log.disk.run(resume_reset, log.disk, log.folder)
        except StorageFailure as error:
            log.fail(error)
            raise
        assert log.end_offset == offset, "appended to while it was emptied"
        log.slot.record(offset, offset, 0)
        log.checkpoint_offset = -1
        log.unsaved_bytes = 0


def resume_reset(disk: Disk, folder: str) -> bool:
    """Do what was decided; False if the decision cannot be read any more. Blocks. May be repeated."""
    offset = _read_decision(disk, folder)
    if offset is None:
        return False
    for name in disk.list(folder):
        if name not in (RESTART, DRAFTS):  # drafts are nothing, and somebody may still be writing them
            disk.remove(f"{folder}/{name}")
    write_start_offset(disk, folder, offset)  # which makes the removals durable, too
    disk.remove(f"{folder}/{RESTART}")
    disk.sync_directory(folder)
    return True


def _write_decision(log: Log, offset: int) -> None:
    log.slot.sync()
    decision = _DECISION.pack(offset, crc32(b"%d" % offset))
    log.disk.write_atomically(f"{log.folder}/{RESTART}", decision)


def _read_decision(disk: Disk, folder: str) -> int | None:
    try:
        offset, crc = _DECISION.unpack(disk.read(f"{folder}/{RESTART}"))
    except struct_error:
        return None
    return int(offset) if crc == crc32(b"%d" % offset) else None


logger = logging.getLogger(__name__)


async def advance_start(log: Log, offset: int) -> int:
    """Returns how many segments were removed."""
    return await run_to_completion(_advance_start(log, offset))


async def truncate(log: Log, offset: int) -> None:
    await run_to_completion(_truncate(log, offset))


async def _advance_start(log: Log, offset: int) -> int:
    async with log.maintenance_lock():
        log.ensure_usable()
        if offset > log.end_offset:
            raise OffsetOutOfRange(f"{offset} lies above the end {log.end_offset}")
        if offset <= log.start_offset:
            return 0
        if offset > log.flushed_offset:
            await log.flusher.flush(log)
        await log.disk.run(write_start_offset, log.disk, log.folder, offset)
        log.ensure_usable()
        log.start_offset = offset
        log.epochs.truncate_start(offset)
        removed_segments = [
            segment
            for segment, following in zip(log.segments, log.segments[1:], strict=False)
            if following.base_offset <= offset
        ]
        if removed_segments:
            log.drop_segments(removed_segments)
            try:
                await log.disk.run(_remove_files, log.disk, log.folder, removed_segments)
            except StorageFailure as error:
                # They are below the start offset: the next start of the broker removes them.
                logger.warning("old segments of %s not removed: %s", log.folder, error)
        return len(removed_segments)


async def _truncate(log: Log, offset: int) -> None:
    async with log.maintenance_lock():
        log.ensure_usable()
        if offset < log.start_offset:
            raise OffsetOutOfRange(f"{offset} lies below the start {log.start_offset}")
        if offset >= log.end_offset:
            return
        end_offset = log.end_offset
        segment, twin, cut_offset = await _find_truncation_point(log, offset)
        if cut_offset < log.start_offset:
            raise OffsetOutOfRange(f"nothing is left of the log below offset {offset} but what lies below its start")
        with log.slot.lowered(cut_offset, segment.base_offset, twin.size):
            await log.disk.run(_lower_flushed_offset, log, segment, twin, cut_offset)
            log.ensure_usable()
            assert log.end_offset == end_offset, "appended to while it was cut"
            removed_segments = log.segments[log.segments.index(segment) + bool(twin.size) :]
            log.drop_segments(removed_segments)
            if twin.size:
                segment.open().truncate(twin.size)
                segment.cut(twin)
            log.end_at(cut_offset)
        try:
            await log.disk.run(
                _make_durable, log.disk, log.folder, None if segment.dropped else segment, removed_segments
            )
            checkpoint, tail = await log.disk.run(_read_tail, log.disk, log.folder, list(log.segments))
        except StorageFailure as error:
            log.fail(error)
            raise
        log.checkpoint_offset = checkpoint.offset if checkpoint else -1
        log.state.restore(checkpoint.state if checkpoint else b"")
        for batch in tail:
            log.state.replay(batch)
        forget_dropped_transactions(log.state, log.segments)


async def _find_truncation_point(log: Log, offset: int) -> tuple[Segment, Segment, int]:
    """The segment with the last batch that ends by `offset`; as it will be after the cut; and where that batch ends.

    If nothing is left of it, the segment goes as a whole, and with it the gap behind the segment before.
    """
    at = len([found for found in log.segments if found.base_offset <= offset]) - 1
    while True:
        segment = log.segments[at]
        try:
            twin, end_offset = await log.disk.run(_twin_below, segment, offset, log.config.index_interval_bytes)
        except BadBatch as bad:
            raise CorruptBatch(str(log.quarantine(segment, bad, segment.base_offset))) from bad
        if twin.size or not at or not log.segments[at - 1].ends_before(segment.base_offset):
            return segment, twin, end_offset
        at, offset = at - 1, segment.base_offset


def _twin_below(segment: Segment, offset: int, index_interval_bytes: int) -> tuple[Segment, int]:
    twin, end_offset = segment.twin(), segment.base_offset
    if segment.size:
        for position, header in headers(segment.open(), 0, segment.size, segment.gaps):
            if header.last_offset >= offset:
                break
            twin.note(header, header.last_offset, position, index_interval_bytes)
            end_offset = header.next_offset
    if segment.cleaned is not None:
        twin.gaps = segment.cleaned.cut(end_offset, end_offset)
    elif segment.copied is not None:
        twin.gaps = segment.copied.cut(end_offset)
    return twin, end_offset


def _lower_flushed_offset(log: Log, segment: Segment, twin: Segment, offset: int) -> None:
    log.slot.sync()
    checkpoints.remove_checkpoints_above(log.disk, log.folder, offset)
    if twin.size and twin.cleaned is not None:
        log.disk.write_atomically(segment.path_of(GAPS), twin.cleaned.encode())
    elif twin.size and twin.copied is not None:
        twin.copied.save()


def _make_durable(disk: Disk, folder: str, kept: Segment | None, removed_segments: list[Segment]) -> None:
    if kept is not None:
        kept.open().sync()
    _remove_files(disk, folder, removed_segments)


def _read_tail(disk: Disk, folder: str, segments: list[Segment]) -> tuple[Checkpoint | None, list[ReplayedBatch]]:
    """The newest checkpoint and every batch behind it."""
    checkpoint = checkpoints.newest_checkpoint(disk, folder, disk.list(folder))
    behind = checkpoint.offset if checkpoint else 0
    found = [
        read_replayed_batch(segment.open(), position, header)
        for segment, following in zip(segments, [*segments[1:], None], strict=True)
        if following is None or following.base_offset > behind
        if segment.size
        for position, header in headers(segment.open(), 0, segment.size, segment.gaps)
        if header.base_offset >= behind
    ]
    return checkpoint, found


def _remove_files(disk: Disk, folder: str, removed_segments: list[Segment]) -> None:
    """Under another name first: a half removed segment must not look like a whole one."""
    paths = [path for segment in removed_segments for path in segment.paths() if disk.exists(path)]
    for path in paths:
        disk.rename(path, path + DELETED)
    for path in paths:
        disk.remove(path + DELETED)
    disk.sync_directory(folder)
