"""A data folder: all logs that this broker keeps, and what looks after them.

    <data>/clean-shutdown       holds the broker epoch; written last at a clean stop, removed first at start
    <data>/flushed-offsets      see flushed
    <data>/logs/<topic id, hex>-<partition>/      see log

One process at a time (the folder is locked). A log is opened once, by its topic id and partition.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from headrace.model.errors import StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, DiskFull
from headrace.storage import retention
from headrace.storage.cleaner import Cleaner
from headrace.storage.config import MIB, LogConfig, StoreConfig
from headrace.storage.errors import LogDeleted
from headrace.storage.flushed import FlushedOffsets, LogKey
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.recovery import Recovery
from headrace.storage.scrub import scrub_forever
from headrace.storage.see_through import see_through
from headrace.storage.segment import DELETED
from headrace.storage.space import SpaceGuard
from headrace.storage.state import NO_STATE, DerivedState, forget_dropped
from headrace.storage.upkeep import save_checkpoint

__all__ = ["LogConfig", "LogStore", "Opening", "StoreConfig", "open_store"]

logger = logging.getLogger(__name__)

LOG_FOLDER = re.compile(r"([0-9a-f]{32})-(\d{1,9})")

T = TypeVar("T")

MARKER = "clean-shutdown"
OPENED_AT_ONCE = 64  # logs per call into the disk threads
BATCHES_PER_CALL = 20_000  # bounds the memory of a recovery
CALLS_AT_ONCE = 4
LOGS_PER_TURN = 256
CHECKPOINT_SAVES_BYTES = MIB  # less than that is scanned faster than it is saved


class Opening(msgspec.Struct, frozen=True):
    """What a log is opened with."""

    config: LogConfig
    state: DerivedState = NO_STATE


async def open_store(disk: Disk, path: str, clock: Clock, config: StoreConfig | None = None) -> LogStore:
    """Take the data folder; its logs are opened by `open_all`."""
    found, broker_epoch, flushed = await disk.run(_take_folder, disk, path)
    config = config or StoreConfig()
    return LogStore(disk, path, clock, config, found=found, broker_epoch=broker_epoch, flushed=flushed)


def _take_folder(disk: Disk, path: str) -> tuple[list[LogKey], int | None, FlushedOffsets]:
    disk.make_directory(f"{path}/logs")
    disk.lock(path)
    broker_epoch = None
    marker = f"{path}/{MARKER}"
    if disk.exists(marker):
        text = disk.read(marker)
        broker_epoch = int(text) if text.strip().isdigit() else None
        disk.remove(marker)
    disk.sync_directory(path)
    keys = []
    for name in disk.list(f"{path}/logs"):
        if name.endswith(DELETED):
            disk.remove_tree(f"{path}/logs/{name}")
        elif found := LOG_FOLDER.fullmatch(name):
            keys.append((UUID(hex=found[1]), int(found[2])))
        else:
            logger.warning("%s/logs/%s is not a log of ours and is left alone", path, name)
    disk.sync_directory(f"{path}/logs")
    flushed = FlushedOffsets(disk, path)
    flushed.sync()  # what a killed process has promised must not be forgotten with the next power cut
    disk.sync_directory(path)
    return keys, broker_epoch, flushed


class LogStore:
    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        config: StoreConfig,
        *,
        found: list[LogKey],
        broker_epoch: int | None,
        flushed: FlushedOffsets,
    ) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._config = config
        self._found = found
        self._flushed = flushed
        self._space = SpaceGuard(disk, path, config.reserve_bytes)
        self.broker_epoch = broker_epoch
        self.logs: dict[LogKey, Log] = {}
        self.flusher = Flusher(disk, clock)
        self.cleaner = Cleaner(disk, clock, self.flusher, config, self._space, self._all_logs)
        self.ensure_space = self._space.ensure

    @property
    def clean(self) -> bool:
        """Whether the last process to use this folder left it in order."""
        return self.broker_epoch is not None

    @property
    def space_refused(self) -> bool:
        return self._space.refuses

    @property
    def free_bytes(self) -> int:
        return self._space.free_bytes

    def start(self, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Begin to look after the logs, in background tasks."""
        spawn(self.flusher.run(), "flusher")
        spawn(self._every(self._config.space_check_seconds, self._space.measure), "space guard")
        spawn(self._every(1.0, self._save_due), "checkpoints")
        spawn(self._every(self._config.retention_check_seconds, self._enforce_retention), "retention")
        if self._config.scrub_bytes_per_second:
            scrub = scrub_forever(self.logs.values, self._config.scrub_bytes_per_second)
            spawn(scrub, "scrub")
        if self._config.cleaner_enabled:
            spawn(self.cleaner.run(), "cleaner")

    # Logs

    def _all_logs(self) -> list[Log]:
        return list(self.logs.values())

    def found(self) -> list[LogKey]:
        """The logs that were in the folder at the start."""
        return list(self._found)

    def get(self, topic_id: UUID, partition: int) -> Log | None:
        return self.logs.get((topic_id, partition))

    async def open_all(self, wanted: Callable[[UUID, int], Opening | None]) -> None:
        """Open every log in the folder; those that nobody wants are deleted."""
        openings = {key: wanted(*key) for key in self._found}
        await self._open({key: opening for key, opening in openings.items() if opening is not None})
        unwanted = [key for key, opening in openings.items() if opening is None]
        if unwanted:
            logger.info("removing %d logs of topics that are gone", len(unwanted))
            await self._remove(unwanted)

    async def create(self, topic_id: UUID, partition: int, opening: Opening) -> Log:
        """A new log, durably; or the one that exists."""
        (log,) = await self.create_all([(topic_id, partition, opening)])
        return log

    async def create_all(self, wanted: Iterable[tuple[UUID, int, Opening]]) -> list[Log]:
        openings = {(topic_id, partition): opening for topic_id, partition, opening in wanted}
        missing = {key: opening for key, opening in openings.items() if key not in self.logs}
        names = [_folder_name(key) for key in missing]
        await self._disk.run(self._disk.make_directories, f"{self._path}/logs", names)
        await self._open(missing)
        return [self.logs[key] for key in openings]

    async def delete_all(self, keys: Iterable[LogKey]) -> None:
        """The logs are gone at once; their files when this returns."""
        doomed, logs = [key for key in keys if key in self.logs], []
        for key in doomed:
            log = self.logs.pop(key)
            log.close()
            self._flushed.release(log.slot)
            logs.append(log)
        for log in logs:
            async with log.upkeep():  # somebody may be writing its checkpoint
                pass
        await see_through(self._remove(doomed))

    async def close(self, broker_epoch: int) -> None:
        """Make everything durable, write the checkpoints, and last the marker of a clean shutdown."""
        for log in self.logs.values():
            self.flusher.mark(log)
        await _in_parallel(self._save_last, list(self.logs.values()))
        clean = all(log.failed is None for log in self.logs.values())
        for log in self.logs.values():
            log.close()
        try:
            await self._disk.run(self._flushed.sync)
            if clean:
                await self._disk.run(self._disk.write_atomically, f"{self._path}/{MARKER}", b"%d" % broker_epoch)
        except StorageFailure as error:  # a full disk must not keep anybody from stopping: the next start recovers
            logger.warning("the marker of a clean shutdown was not written: %s", error)

    async def _save_last(self, log: Log) -> None:
        try:
            await self.flusher.flush(log)
            if log.usable and log.checkpoint_offset != log.end_offset:
                log.active.index_time()  # as rolling does: Kafka's tools look for the newest timestamp there
                await save_checkpoint(log, self.flusher)
        except DiskFull as error:
            logger.warning("the last checkpoint of %s was not written: %s", log.folder, error)
        except StorageFailure as error:
            logger.error("log %s could not be closed in order: %s", log.folder, error)

    async def _open(self, openings: dict[LogKey, Opening]) -> None:
        items = list(openings.items())
        batches = [items[at : at + OPENED_AT_ONCE] for at in range(0, len(items), OPENED_AT_ONCE)]
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
                    forget_dropped(opening.state, recovery.segments)
                    self.logs[key] = Log(
                        self._disk,
                        self._clock,
                        key,
                        config=opening.config,
                        state=opening.state,
                        slot=slot,
                        flusher=self.flusher,
                        found=recovery,
                    )
                else:
                    unfinished.append((key, opening, slot, recovery))
            pending = unfinished

    async def _remove(self, keys: list[LogKey]) -> None:
        await self._disk.run(
            _remove_folders,
            self._disk,
            f"{self._path}/logs",
            [self._folder(key) for key in keys],
            self._flushed,
        )

    def _folder(self, key: LogKey) -> str:
        return f"{self._path}/logs/{_folder_name(key)}"

    # Background tasks

    async def enforce_retention(self, now_ms: int | None = None) -> int:
        """Delete what the topics no longer keep; returns how many segments."""
        removed = 0
        async for log in self._each_log():
            try:
                removed += await retention.delete_old(log, self._clock.now_ms() if now_ms is None else now_ms)
            except (StorageFailure, LogDeleted) as error:
                logger.warning("retention of %s: %s", log.folder, error)
        return removed

    async def _enforce_retention(self) -> None:
        await self.enforce_retention()

    async def _save_due(self) -> None:
        async for log in self._each_log():
            if not self._checkpoint_due(log):
                continue
            try:
                await save_checkpoint(log, self.flusher)
            except DiskFull as error:
                logger.warning("checkpoints must wait: %s", error)
                return
            except (StorageFailure, LogDeleted) as error:
                logger.warning("checkpoint of %s: %s", log.folder, error)

    async def _each_log(self) -> AsyncIterator[Log]:
        """All logs, without keeping the loop from its other work."""
        for number, log in enumerate(list(self.logs.values())):
            if number % LOGS_PER_TURN == 0:
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

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()


async def _in_parallel(work: Callable[[T], Coroutine[Any, Any, None]], items: list[T]) -> None:
    """Do this for every item, a few at a time."""
    remaining = iter(items)

    async def go_on() -> None:
        for item in remaining:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CALLS_AT_ONCE, len(items))):
            group.create_task(go_on())


def _folder_name(key: LogKey) -> str:
    return f"{key[0].hex}-{key[1]}"


def _step_all(recoveries: list[Recovery]) -> list[bool]:
    """Bring each a step further, as long as the loop has not too much to replay; says which are done."""
    done, batches = [], 0
    for recovery in recoveries:
        # Two steps: the plan and, for a log with little to scan, all the rest.
        done.append(batches < BATCHES_PER_CALL and (recovery.step() or recovery.step()))
        batches += len(recovery.replayed)
    return done


def _remove_folders(disk: Disk, parent: str, folders: list[str], flushed: FlushedOffsets) -> None:
    """The flushed points first, then all names at once, so that no half removed log is ever found."""
    flushed.sync()
    for folder in folders:
        disk.rename(folder, folder + DELETED)
    disk.sync_directory(parent)
    for folder in folders:
        disk.remove_tree(folder + DELETED)
    disk.sync_directory(parent)
