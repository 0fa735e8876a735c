"""Stray logs: logs that the registry does not know. They are kept until an operator decides. The functions block.

    <data>/stray/<topic id, hex>-<partition>[.N]/      the log, unchanged; N if there is already one of this name
    <data>/stray/<topic id, hex>.json                  the record of its topic, see `topic_files`

- A stray log may be the only copy of data that an older registry has forgotten. So the broker never deletes it, unless
  the registry holds a tombstone of the deleted topic.
- When the registry knows the partition again, the next start moves the log back. Until then an operator may adopt or
  purge it.
- A crash leaves a log either in `logs/` or in `stray/`, and both moves can be repeated.
- The flushed point of a log is stored in its folder: a new log of the same partition must not find it in the file
  `flushed-offsets`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk
from headrace.storage.segments.segment import DELETED
from headrace.storage.store.data_folder import LOG_FOLDER, folder_name
from headrace.storage.store.flushed_offsets import FlushedOffsets, FlushedPoint, LogKey
from headrace.storage.store.topic_files import TOPICS, remove_topic_file, topic_file_name

logger = logging.getLogger(__name__)

STRAY = "stray"
STRAY_FOLDER = re.compile(LOG_FOLDER.pattern + r"(\.\d+)?")
FLUSHED_POINT = "flushed-point"


class StrayLog(NamedTuple):
    name: str
    topic_id: UUID
    partition: int

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.partition


class StraySize(NamedTuple):
    logs: int
    size_bytes: int


class StrayLogs:
    """The stray logs of one data folder. `found` were there at the start; `size` is measured periodically."""

    def __init__(self, disk: Disk, data: str, flushed: FlushedOffsets, found: list[StrayLog]) -> None:
        self.found = found
        self.size = StraySize(0, 0)
        self._disk = disk
        self._data = data
        self._flushed = flushed

    async def move_back(self, keys: Sequence[LogKey]) -> None:
        if keys:
            logger.warning("stray logs moved back, the registry knows them again logs=%d", len(keys))
            await self._disk.run(move_back, self._disk, self._data, keys, self._flushed)

    async def add(self, keys: Sequence[LogKey]) -> None:
        if keys:
            await self._disk.run(move_to_stray, self._disk, self._data, keys, self._flushed)
            logger.warning(
                "logs unknown to the registry kept as stray folder=%s/%s logs=%d", self._data, STRAY, len(keys)
            )

    async def purge(self, topic_ids: Collection[UUID]) -> None:
        """Delete the stray logs of deleted topics."""
        logs = [log for log in self.found if log.topic_id in topic_ids]
        if logs:
            await self._disk.run(purge_strays, self._disk, self._data, logs)

    async def measure(self) -> None:
        self.size = await self._disk.run(measure_strays, self._disk, self._data)


def stray_logs(disk: Disk, data: str) -> list[StrayLog]:
    found = (STRAY_FOLDER.fullmatch(name) for name in _names(disk, f"{data}/{STRAY}"))
    return [StrayLog(match[0], UUID(hex=match[1]), int(match[2])) for match in found if match is not None]


def measure_strays(disk: Disk, data: str) -> StraySize:
    logs = stray_logs(disk, data)
    return StraySize(len(logs), sum(_size_bytes(disk, f"{data}/{STRAY}/{log.name}") for log in logs))


def move_to_stray(disk: Disk, data: str, keys: Sequence[LogKey], flushed: FlushedOffsets) -> None:
    """Move logs to the stray folder. They are closed, or were never opened."""
    stray = f"{data}/{STRAY}"
    disk.make_directory(stray)
    for topic_id in {topic_id for topic_id, _ in keys}:
        source = f"{data}/{TOPICS}/{topic_file_name(topic_id)}"
        if disk.exists(source):
            disk.write_atomically(f"{stray}/{topic_file_name(topic_id)}", disk.read(source))
    for key in keys:
        point = flushed.point(key)
        if point is not None:
            path = f"{data}/logs/{folder_name(key)}/{FLUSHED_POINT}"
            disk.write_atomically(path, msgspec.json.encode(point))
            flushed.forget(key)
    flushed.sync()
    for key in keys:
        disk.rename(f"{data}/logs/{folder_name(key)}", f"{stray}/{_free_name(disk, stray, folder_name(key))}")
    disk.sync_directory(stray)
    disk.sync_directory(f"{data}/logs")


def move_back(disk: Disk, data: str, keys: Sequence[LogKey], flushed: FlushedOffsets) -> None:
    """Move stray logs back. The registry knows these partitions again, and there is no other log of them."""
    stray = f"{data}/{STRAY}"
    for key in keys:
        point = _read_point(disk, f"{stray}/{folder_name(key)}/{FLUSHED_POINT}")
        if point is not None:
            flushed.restore(key, point)
    flushed.sync()
    for key in keys:
        disk.rename(f"{stray}/{folder_name(key)}", f"{data}/logs/{folder_name(key)}")
    disk.sync_directory(f"{data}/logs")
    disk.sync_directory(stray)
    _remove_unused_topic_files(disk, data, {topic_id for topic_id, _ in keys})


def purge_strays(disk: Disk, data: str, logs: Sequence[StrayLog]) -> None:
    """Delete stray logs. All are renamed first, so that no half-deleted log is ever moved back."""
    stray = f"{data}/{STRAY}"
    for log in logs:
        disk.rename(f"{stray}/{log.name}", f"{stray}/{log.name}{DELETED}")
    disk.sync_directory(stray)
    remove_purged(disk, data)
    _remove_unused_topic_files(disk, data, {log.topic_id for log in logs})


def remove_purged(disk: Disk, data: str) -> None:
    """Remove the files of purged logs, also of a purge that a crash interrupted."""
    for name in _names(disk, f"{data}/{STRAY}"):
        if name.endswith(DELETED):
            disk.remove_tree(f"{data}/{STRAY}/{name}")


def _read_point(disk: Disk, path: str) -> FlushedPoint | None:
    """None if the file is missing or damaged: the checkpoint of the log still says up to where it was durable."""
    try:
        return msgspec.json.decode(disk.read(path), type=FlushedPoint) if disk.exists(path) else None
    except msgspec.MsgspecError:
        return None


def _remove_unused_topic_files(disk: Disk, data: str, topic_ids: set[UUID]) -> None:
    used = {log.topic_id for log in stray_logs(disk, data)}
    for topic_id in topic_ids - used:
        remove_topic_file(disk, f"{data}/{STRAY}", topic_id)


def _free_name(disk: Disk, folder: str, name: str) -> str:
    taken, number, free = _names(disk, folder), 1, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free


def _names(disk: Disk, folder: str) -> list[str]:
    return disk.list(folder) if disk.exists(folder) else []


def _size_bytes(disk: Disk, folder: str) -> int:
    """The size of a log; files that cannot be read, or are being purged, are not counted."""
    size_bytes = 0
    try:
        for name in disk.list(folder):
            file = disk.open(f"{folder}/{name}")
            size_bytes += file.size()
            file.close()
    except (StorageFailure, FileNotFoundError) as error:
        logger.debug("stray log not measured folder=%s error=%s", folder, error)
    return size_bytes
