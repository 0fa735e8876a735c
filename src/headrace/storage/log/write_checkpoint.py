"""Writing a log's checkpoint: everything below it is durable and indexed, so recovery begins there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.disk import Disk, DiskFailed, DiskFull
from headrace.runtime.tasks import run_to_completion
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import Checkpoint, SegmentCheckpoint
from headrace.storage.segments.index import SparseIndex

if TYPE_CHECKING:
    from headrace.storage.log.flusher import Flusher
    from headrace.storage.log.log import Log


async def save_checkpoint(log: Log, flusher: Flusher) -> None:
    """Make durable what the log holds now and say so. Raises DiskFull, and then the old checkpoint stands."""
    await run_to_completion(_save_checkpoint(log, flusher))


async def _save_checkpoint(log: Log, flusher: Flusher) -> None:
    async with log.maintenance_lock():
        log.ensure_usable()
        generation = log.generation
        saved_bytes = log.unsaved_bytes
        try:
            checkpoint, indexes = _build_checkpoint(log)
            await flusher.flush(log)
            log.ensure_usable()
            await log.disk.run(_write_files, log.disk, log.folder, checkpoint, indexes)
        except DiskFull:
            raise
        except DiskFailed as error:
            log.fail(error)
            raise
        if log.generation == generation:
            log.checkpoint_offset = checkpoint.offset
            log.unsaved_bytes -= saved_bytes
            log.checkpoint_seconds = log.clock.monotonic()


def _build_checkpoint(log: Log) -> tuple[Checkpoint, list[SparseIndex]]:
    """On the loop, in one step: the indexes go to their files, all else into the checkpoint."""
    indexes: list[SparseIndex] = [index for segment in log.segments for index in (segment.index, segment.time_index)]
    for index in indexes:
        index.save()
    unsynced = [index for index in indexes if index.unsynced]
    for index in unsynced:
        index.unsynced = False
    marks = [SegmentCheckpoint.of(segment) for segment in log.segments]
    state = log.state.snapshot()
    checkpoint = Checkpoint(
        log.end_offset, log.start_offset, marks, log.epochs.entries(), state, cleaned_offset=log.cleaned_offset
    )
    return checkpoint, unsynced


def _write_files(disk: Disk, folder: str, checkpoint: Checkpoint, indexes: list[SparseIndex]) -> None:
    for index in indexes:
        index.file().sync()
    if indexes:
        disk.sync_directory(folder)
    checkpoints.write_checkpoint_file(disk, folder, checkpoint)
