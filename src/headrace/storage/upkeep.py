"""Writing a log's checkpoint: everything below it is durable and indexed, so recovery begins there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.disk import Disk, DiskFailed, DiskFull
from headrace.storage import checkpoint as checkpoints
from headrace.storage.checkpoint import Checkpoint, SegmentMark
from headrace.storage.index import SparseIndex
from headrace.storage.see_through import see_through

if TYPE_CHECKING:
    from headrace.storage.flusher import Flusher
    from headrace.storage.log import Log


async def save_checkpoint(log: Log, flusher: Flusher) -> None:
    """Make durable what the log holds now and say so. Raises DiskFull, and then the old checkpoint stands."""
    await see_through(_save(log, flusher))


async def _save(log: Log, flusher: Flusher) -> None:
    async with log.upkeep():
        log.ensure_usable()
        generation = log.generation
        saved_bytes = log.unsaved_bytes
        try:
            checkpoint, indexes = _take(log)
            await flusher.flush(log)
            log.ensure_usable()
            await log.disk.run(_write, log.disk, log.folder, checkpoint, indexes)
        except DiskFull:
            raise
        except DiskFailed as error:
            log.fail(error)
            raise
        if log.generation == generation:
            log.checkpoint_offset = checkpoint.offset
            log.unsaved_bytes -= saved_bytes
            log.checkpoint_seconds = log.clock.monotonic()


def _take(log: Log) -> tuple[Checkpoint, list[SparseIndex]]:
    """On the loop, in one step: the indexes go to their files, all else into the checkpoint."""
    indexes: list[SparseIndex] = [index for segment in log.segments for index in (segment.index, segment.time_index)]
    for index in indexes:
        index.save()
    unsynced = [index for index in indexes if index.unsynced]
    for index in unsynced:
        index.unsynced = False
    marks = [SegmentMark.of(segment) for segment in log.segments]
    state = log.state.snapshot()
    checkpoint = Checkpoint(
        log.end_offset, log.start_offset, marks, log.epochs.entries(), state, cleaned_offset=log.cleaned_offset
    )
    return checkpoint, unsynced


def _write(disk: Disk, folder: str, checkpoint: Checkpoint, indexes: list[SparseIndex]) -> None:
    for index in indexes:
        index.file().sync()
    if indexes:
        disk.sync_directory(folder)
    checkpoints.write(disk, folder, checkpoint)
