"""A data folder as it lies on disk: the marks in it, and the folders of its logs. All of this blocks.

<data>/clean-shutdown       holds the broker epoch; written last at a clean stop, removed first at start
<data>/flushed-offsets      see flushed
<data>/logs/<topic id, hex>-<partition>/               see log
<data>/logs/<topic id, hex>-<partition>.deleted/       about to be removed
<data>/logs/<topic id, hex>-<partition>.damaged-1/     set aside, for whoever wants to look at it; never removed by us
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple
from uuid import UUID

from headrace.runtime.disk import Disk
from headrace.storage.segments.segment import DELETED
from headrace.storage.store.flushed_offsets import FlushedOffsets, LogKey

logger = logging.getLogger(__name__)

LOG_FOLDER = re.compile(r"([0-9a-f]{32})-(\d{1,9})")
DAMAGED_FOLDER = re.compile(LOG_FOLDER.pattern + r"\.damaged-\d+")
MARKER = "clean-shutdown"


class DataFolderContents(NamedTuple):
    """What a data folder held when it was taken."""

    logs: list[LogKey]
    broker_epoch: int | None  # of a process that has left it in order
    flushed: FlushedOffsets


def open_data_folder(disk: Disk, path: str) -> DataFolderContents:
    disk.make_directory(f"{path}/logs")
    disk.lock(path)
    broker_epoch = _read_broker_epoch(disk, f"{path}/{MARKER}")
    if disk.exists(f"{path}/{MARKER}"):
        disk.remove(f"{path}/{MARKER}")
    disk.sync_directory(path)
    keys: list[LogKey] = []
    for name in disk.list(f"{path}/logs"):
        if name.endswith(DELETED):
            disk.remove_tree(f"{path}/logs/{name}")
        elif found := LOG_FOLDER.fullmatch(name):
            keys.append((UUID(hex=found[1]), int(found[2])))
        elif DAMAGED_FOLDER.fullmatch(name):
            logger.warning("%s/logs/%s is damaged and was set aside; remove it when it is not needed", path, name)
        else:
            logger.warning("%s/logs/%s is not a log of ours and is left alone", path, name)
    disk.sync_directory(f"{path}/logs")
    flushed = FlushedOffsets(disk, path)
    # A flushed point without a log stays, also beside a damaged log that was set aside: the log that replaced that one
    # may have been lost. If a crash came before the replacement, the log is found missing and replaced again.
    flushed.sync()  # what a killed process has promised must not be forgotten with the next power cut
    disk.sync_directory(path)
    return DataFolderContents(keys, broker_epoch, flushed)


def write_clean_shutdown_marker(disk: Disk, path: str, broker_epoch: int) -> None:
    """All is in order."""
    disk.write_atomically(f"{path}/{MARKER}", b"%d" % broker_epoch)


def remove_folders(disk: Disk, parent: str, folders: list[str], flushed: FlushedOffsets) -> None:
    """The flushed points first, then all names at once, so that no half removed log is ever found."""
    flushed.sync()
    for folder in folders:
        disk.rename(folder, folder + DELETED)
    disk.sync_directory(parent)
    for folder in folders:
        disk.remove_tree(folder + DELETED)
    disk.sync_directory(parent)


def rename_damaged_folder(disk: Disk, parent: str, name: str) -> str:
    """Give the folder of a damaged log another name, durably; returns that."""
    names, number = disk.list(parent), 1
    while f"{name}.damaged-{number}" in names:
        number += 1
    disk.rename(f"{parent}/{name}", f"{parent}/{name}.damaged-{number}")
    disk.sync_directory(parent)
    return f"{name}.damaged-{number}"


def folder_name(key: LogKey) -> str:
    return f"{key[0].hex}-{key[1]}"


def _read_broker_epoch(disk: Disk, path: str) -> int | None:
    text = disk.read(path).strip() if disk.exists(path) else b""
    return int(text) if text.isdigit() else None
