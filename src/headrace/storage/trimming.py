"""Cutting a log at either end. What is promised gone is durably gone before it is answered.

start   the start offset is made durable first, then whole segments below it are removed
end     checkpoints, the flushed point and the gaps of the segment are lowered durably first, so that recovery
        expects no more than what is left; then the files are cut

A cut log ends with a batch, never in a gap: a follower, who gets nothing but batches, could not come to an end there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.model.errors import OffsetOutOfRange, StorageFailure
from headrace.runtime.disk import Disk
from headrace.storage import checkpoint as checkpoints
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.errors import CorruptBatch
from headrace.storage.scan import BadBatch, headers, replayed
from headrace.storage.see_through import see_through
from headrace.storage.segment import DELETED, GAPS, Segment
from headrace.storage.start_offset import write_start_offset
from headrace.storage.state import Replayed, forget_dropped

if TYPE_CHECKING:
    from headrace.storage.log import Log

logger = logging.getLogger(__name__)


async def advance_start(log: Log, offset: int) -> int:
    """Returns how many segments were removed."""
    return await see_through(_advance_start(log, offset))


async def truncate(log: Log, offset: int) -> None:
    await see_through(_truncate(log, offset))


async def _advance_start(log: Log, offset: int) -> int:
    async with log.upkeep():
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
        doomed = [
            segment
            for segment, following in zip(log.segments, log.segments[1:], strict=False)
            if following.base_offset <= offset
        ]
        if doomed:
            log.drop_segments(doomed)
            try:
                await log.disk.run(_remove_files, log.disk, log.folder, doomed)
            except StorageFailure as error:
                # They are below the start offset: the next start of the broker removes them.
                logger.warning("old segments of %s not removed: %s", log.folder, error)
        return len(doomed)


async def _truncate(log: Log, offset: int) -> None:
    async with log.upkeep():
        log.ensure_usable()
        if offset < log.start_offset:
            raise OffsetOutOfRange(f"{offset} lies below the start {log.start_offset}")
        if offset >= log.end_offset:
            return
        end_offset = log.end_offset
        segment, twin, cut_offset = await _measure(log, offset)
        if cut_offset < log.start_offset:
            raise OffsetOutOfRange(f"nothing is left of the log below offset {offset} but what lies below its start")
        with log.slot.lowered(cut_offset, segment.base_offset, twin.size):
            await log.disk.run(_lower_promises, log, segment, twin, cut_offset)
            log.ensure_usable()
            assert log.end_offset == end_offset, "appended to while it was cut"
            doomed = log.segments[log.segments.index(segment) + bool(twin.size) :]
            log.drop_segments(doomed)
            if twin.size:
                segment.open().truncate(twin.size)
                segment.cut(twin)
            log.end_at(cut_offset)
        try:
            await log.disk.run(_make_durable, log.disk, log.folder, None if segment.dropped else segment, doomed)
            checkpoint, tail = await log.disk.run(_tail, log.disk, log.folder, list(log.segments))
        except StorageFailure as error:
            log.fail(error)
            raise
        log.checkpoint_offset = checkpoint.offset if checkpoint else -1
        log.state.restore(checkpoint.state if checkpoint else b"")
        for batch in tail:
            log.state.replay(batch)
        forget_dropped(log.state, log.segments)


async def _measure(log: Log, offset: int) -> tuple[Segment, Segment, int]:
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


def _lower_promises(log: Log, segment: Segment, twin: Segment, offset: int) -> None:
    log.slot.sync()
    checkpoints.remove_above(log.disk, log.folder, offset)
    if twin.size and twin.cleaned is not None:
        log.disk.write_atomically(segment.path_of(GAPS), twin.cleaned.encode())
    elif twin.size and twin.copied is not None:
        twin.copied.save()


def _make_durable(disk: Disk, folder: str, kept: Segment | None, doomed: list[Segment]) -> None:
    if kept is not None:
        kept.open().sync()
    _remove_files(disk, folder, doomed)


def _tail(disk: Disk, folder: str, segments: list[Segment]) -> tuple[Checkpoint | None, list[Replayed]]:
    """The newest checkpoint and every batch behind it."""
    checkpoint = checkpoints.newest(disk, folder, disk.list(folder))
    behind = checkpoint.offset if checkpoint else 0
    found = [
        replayed(segment.open(), position, header)
        for segment, following in zip(segments, [*segments[1:], None], strict=True)
        if following is None or following.base_offset > behind
        if segment.size
        for position, header in headers(segment.open(), 0, segment.size, segment.gaps)
        if header.base_offset >= behind
    ]
    return checkpoint, found


def _remove_files(disk: Disk, folder: str, doomed: list[Segment]) -> None:
    """Under another name first: a half removed segment must not look like a whole one."""
    paths = [path for segment in doomed for path in segment.paths() if disk.exists(path)]
    for path in paths:
        disk.rename(path, path + DELETED)
    for path in paths:
        disk.remove(path + DELETED)
    disk.sync_directory(folder)
