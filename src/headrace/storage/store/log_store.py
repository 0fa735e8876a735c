"""The logs of a data folder: open, create, delete and replace them; run their background maintenance.

- One process uses the folder at a time; it is locked (see `data_folder` for its layout).
- A log is identified by its topic id and partition and is opened once.
- Operations on the same log run one at a time; operations on different logs run concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from headrace.model.errors import OffsetOutOfRange, StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, DiskFull
from headrace.runtime.tasks import KeyedLock, runs_to_completion
from headrace.storage.compaction.cleaner import LogCleaner
from headrace.storage.config import MIB, LogConfig, StoreConfig
from headrace.storage.errors import LogDeleted
from headrace.storage.log import retention
from headrace.storage.log.derived_state import DerivedState, forget_dropped_transactions
from headrace.storage.log.flusher import Flusher
from headrace.storage.log.log import Log
from headrace.storage.log.recovery import Recovery
from headrace.storage.store import data_folder
from headrace.storage.store.data_folder import LOG_FOLDER, DataFolderContents, folder_name
from headrace.storage.store.flushed_offsets import LogKey
from headrace.storage.store.scrub import scrub_forever
from headrace.storage.store.space_guard import SpaceGuard
from headrace.storage.store.stray_logs import StrayLogs, remove_purged, stray_logs
from headrace.storage.store.topic_files import TOPICS, TopicFiles, read_topic_files

__all__ = ["LOG_FOLDER", "LogConfig", "LogStore", "Opening", "StoreConfig", "open_store"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONCURRENT_OPENS = 64  # logs per call into the disk threads
BATCHES_PER_CALL = 20_000  # bounds the memory of a recovery
CONCURRENT_STEPS = 4
LOGS_PER_YIELD = 256
STRAY_CHECK_SECONDS = 60.0
CHECKPOINT_SAVES_BYTES = MIB  # scanning less than this is faster than saving a checkpoint


class Opening(msgspec.Struct, frozen=True):
    config: LogConfig
    state: DerivedState


async def open_store(disk: Disk, path: str, clock: Clock, config: StoreConfig | None = None) -> LogStore:
    """Open and lock the data folder; `open_all` opens its logs."""
    found = await disk.run(data_folder.open_data_folder, disk, path)
    records = await disk.run(read_topic_files, disk, f"{path}/{TOPICS}")
    await disk.run(remove_purged, disk, path)
    strays = StrayLogs(disk, path, found.flushed, await disk.run(stray_logs, disk, path))
    return LogStore(disk, path, clock, config or StoreConfig(), found, TopicFiles(disk, path, records), strays)


class LogStore:
    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        config: StoreConfig,
        found: DataFolderContents,
        topic_files: TopicFiles,
        strays: StrayLogs,
    ) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._config = config
        self._found = found.logs
        self._flushed = found.flushed
        self._locks_by_key = KeyedLock[LogKey]()
        self.space = SpaceGuard(disk, path, config.reserve_bytes)
        self.strays = strays
        self.topic_files = topic_files
        self.broker_epoch = found.broker_epoch  # set if the last process to use this folder shut down cleanly
        self.logs: dict[LogKey, Log] = {}
        self.flusher = Flusher(disk, clock)
        self.cleaner = LogCleaner(disk, clock, config, self.space, lambda: list(self.logs.values()))

    def start(self, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        spawn(self.flusher.run(), "flusher")
        spawn(self._every(self._config.space_check_seconds, self.space.measure), "space guard")
        spawn(self._every(1.0, self._save_due_checkpoints), "checkpoints")
        spawn(self._every(STRAY_CHECK_SECONDS, self.strays.measure), "stray logs")
        spawn(self._every(self._config.retention_check_seconds, self.enforce_retention), "retention")
        if self._config.scrub_bytes_per_second:
            spawn(scrub_forever(self.logs.values, self._config.scrub_bytes_per_second), "scrub")
        if self._config.cleaner_enabled:
            spawn(self.cleaner.run(), "cleaner")

    # Logs

    def found(self) -> list[LogKey]:
        """The logs that were in the folder at the start, including stray ones."""
        return [*self._found, *(log.key for log in self.strays.found)]

    async def open_all(
        self, wanted: Callable[[UUID, int], Opening | None], deleted: Collection[UUID] = frozenset()
    ) -> None:
        """Open every wanted log, including stray ones. Delete the logs of deleted topics; all others become stray,
        because the registry may be older than they are."""
        returning = {log.key for log in self.strays.found if wanted(*log.key) is not None}.difference(self._found)
        await self.strays.move_back(list(returning))
        self._found += returning
        openings = {key: wanted(*key) for key in self._found}
        await self._open({key: opening for key, opening in openings.items() if opening is not None})
        unwanted = [key for key, opening in openings.items() if opening is None]
        doomed = [key for key in unwanted if key[0] in deleted]
        if doomed:
            logger.info("deleting logs of topics that were deleted while this broker was down logs=%d", len(doomed))
            for key in doomed:
                self._flushed.forget(key)
            await self._remove(doomed)
        await self.strays.add([key for key in unwanted if key[0] not in deleted])
        await self.strays.purge(deleted)
        await self.strays.measure()

    async def move_all_to_stray(self, keys: Iterable[LogKey]) -> None:
        """Close these logs and keep them as stray: their topic is gone, but it is not known to have been deleted."""
        keys = list(keys)
        async with self._locks_by_key.take(keys):
            await self._move_all_to_stray([key for key in keys if key in self.logs])

    @runs_to_completion
    async def _move_all_to_stray(self, keys: list[LogKey]) -> None:
        await _in_parallel(self._save_final_checkpoint, [self.logs[key] for key in keys])
        for log in [self._close(key) for key in keys]:
            await _end_maintenance(log)
            self._flushed.release(log.slot)
        await self.strays.add(keys)
        await self.strays.measure()

    async def create_all(self, wanted: Iterable[tuple[UUID, int, Opening]]) -> list[Log]:
        """Create logs durably, unless they exist, and return them."""
        openings = {(topic_id, partition): opening for topic_id, partition, opening in wanted}
        async with self._locks_by_key.take(openings):
            await self._create_missing({key: opening for key, opening in openings.items() if key not in self.logs})
            return [self.logs[key] for key in openings]

    @runs_to_completion
    async def _create_missing(self, openings: dict[LogKey, Opening]) -> None:
        names = [folder_name(key) for key in openings]
        await self._disk.run(self._disk.make_directories, f"{self._path}/logs", names)
        await self._open(openings)

    async def delete_all(self, keys: Iterable[LogKey]) -> None:
        """Close and delete logs. They are closed at once; their files are removed when this returns."""
        keys = list(keys)
        async with self._locks_by_key.take(keys):
            doomed = [key for key in keys if key in self.logs]
            logs = [self._close(key) for key in doomed]
            for log in logs:
                self._flushed.release(log.slot)
            await self._delete(doomed, logs)

    @runs_to_completion
    async def _delete(self, keys: list[LogKey], logs: list[Log]) -> None:
        for log in logs:
            await _end_maintenance(log)
        await self._remove(keys)

    async def replace(self, topic_id: UUID, partition: int, opening: Opening) -> Log:
        """Replace a quarantined log by an empty one. The damaged files are kept under another name."""
        key = (topic_id, partition)
        async with self._locks_by_key.take([key]):
            assert self.logs[key].quarantined is not None, "the log is not quarantined"
            await self._replace(key, self._close(key), opening)
            return self.logs[key]

    @runs_to_completion
    async def _replace(self, key: LogKey, damaged: Log, opening: Opening) -> None:
        await _end_maintenance(damaged)
        name = await self._disk.run(
            data_folder.rename_damaged_folder, self._disk, f"{self._path}/logs", folder_name(key)
        )
        logger.warning("damaged log replaced by an empty one log=%s kept_as=%s", damaged.folder, name)
        self._flushed.release(damaged.slot)
        await self._disk.run(self._flushed.sync)
        await self._create_missing({key: opening})

    def _close(self, key: LogKey) -> Log:
        log = self.logs.pop(key)
        log.close()
        return log

    async def close(self, broker_epoch: int) -> None:
        """Make everything durable, write the checkpoints, and finally the marker of a clean shutdown."""
        for log in self.logs.values():
            self.flusher.mark(log)
        await _in_parallel(self._save_final_checkpoint, list(self.logs.values()))
        clean = all(log.failed is None for log in self.logs.values())
        for log in self.logs.values():
            log.close()
        try:
            await self._disk.run(self._flushed.sync)
            if clean:
                await self._disk.run(data_folder.write_clean_shutdown_marker, self._disk, self._path, broker_epoch)
        except StorageFailure as error:  # a full disk must not prevent the stop: the next start recovers
            logger.warning("clean shutdown marker not written error=%s", error)

    async def _save_final_checkpoint(self, log: Log) -> None:
        try:
            await self.flusher.flush(log)
            if log.usable and log.checkpoint_offset != log.end_offset:
                log.active.index_time()  # as `Log.roll` does: Kafka's tools read the newest timestamp there
                await log.save_checkpoint()
        except DiskFull as error:
            logger.warning("final checkpoint not written log=%s error=%s", log.folder, error)
        except StorageFailure as error:
            logger.error("log not closed cleanly log=%s error=%s", log.folder, error)

    async def _open(self, openings: dict[LogKey, Opening]) -> None:
        items = list(openings.items())
        batches = [items[at : at + CONCURRENT_OPENS] for at in range(0, len(items), CONCURRENT_OPENS)]
        await _in_parallel(self._open_batch, batches)

    async def _open_batch(self, batch: list[tuple[LogKey, Opening]]) -> None:
        pending = []
        for key, opening in batch:
            slot = self._flushed.claim(key)
            recovery = Recovery(self._disk, self._folder(key), slot.point, opening.config.index_interval_bytes)
            pending.append((key, opening, slot, recovery))
        restored = set[LogKey]()
        while pending:
            done = await self._disk.run(_step_all, [recovery for *_, recovery in pending])
            unfinished = []
            for (key, opening, slot, recovery), finished in zip(pending, done, strict=True):
                if key not in restored and recovery.snapshot is not None:
                    restored.add(key)
                    opening.state.restore(recovery.snapshot)
                for found in recovery.replayed:
                    opening.state.replay(found)
                recovery.replayed.clear()
                if finished:
                    forget_dropped_transactions(opening.state, recovery.segments)
                    self.logs[key] = Log(
                        self._disk,
                        self._clock,
                        key,
                        config=opening.config,
                        state=opening.state,
                        slot=slot,
                        flusher=self.flusher,
                        recovery=recovery,
                    )
                else:
                    unfinished.append((key, opening, slot, recovery))
            pending = unfinished

    async def _remove(self, keys: list[LogKey]) -> None:
        folders = [self._folder(key) for key in keys]
        await self._disk.run(data_folder.remove_folders, self._disk, f"{self._path}/logs", folders, self._flushed)

    def _folder(self, key: LogKey) -> str:
        return f"{self._path}/logs/{folder_name(key)}"

    # Background tasks

    async def enforce_retention(self, now_ms: int | None = None) -> int:
        """Delete expired segments of all logs. Returns how many."""
        removed = 0
        async for log in self._each_log():
            try:
                removed += await retention.delete_expired_segments(
                    log, self._clock.now_ms() if now_ms is None else now_ms
                )
            except (StorageFailure, LogDeleted, OffsetOutOfRange) as error:  # out of range: truncated meanwhile
                logger.warning("retention failed log=%s error=%s", log.folder, error)
        return removed

    async def _save_due_checkpoints(self) -> None:
        async for log in self._each_log():
            if not self._checkpoint_due(log):
                continue
            try:
                await log.save_checkpoint()
            except DiskFull as error:
                logger.warning("checkpoints postponed, disk full error=%s", error)
                return
            except (StorageFailure, LogDeleted) as error:
                logger.warning("checkpoint failed log=%s error=%s", log.folder, error)

    async def _each_log(self) -> AsyncIterator[Log]:
        """All logs, yielding to the event loop between groups of them."""
        for number, log in enumerate(list(self.logs.values())):
            if number % LOGS_PER_YIELD == 0:
                await asyncio.sleep(0)
            yield log

    def _checkpoint_due(self, log: Log) -> bool:
        unsaved = log.unsaved_bytes
        if not unsaved or not log.usable:
            return False
        if unsaved >= self._config.checkpoint_bytes:
            return True
        age = self._clock.monotonic() - log.checkpoint_seconds
        if unsaved >= CHECKPOINT_SAVES_BYTES:
            return age >= self._config.checkpoint_seconds
        return age >= self._config.checkpoint_idle_seconds

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()


async def _end_maintenance(log: Log) -> None:
    """Wait until nothing works on the files of a closed log any more; a checkpoint may be in progress."""
    async with log.maintenance_lock:
        pass


async def _in_parallel(work: Callable[[T], Coroutine[Any, Any, None]], items: list[T]) -> None:
    """Run `work` for every item, a few at a time. Raises the first error itself, so that callers can catch its type."""
    remaining = iter(items)

    async def process_items() -> None:
        for item in remaining:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENT_STEPS, len(items))):
                group.create_task(process_items())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _step_all(recoveries: list[Recovery]) -> list[bool]:
    """Advance each recovery, until the event loop has enough batches to replay. Returns which ones are complete."""
    done, batches = [], 0
    for recovery in recoveries:
        # Two steps: loading the checkpoint and, for a log with little to scan, everything else.
        done.append(batches < BATCHES_PER_CALL and (recovery.step() or recovery.step()))
        batches += len(recovery.replayed)
    return done
