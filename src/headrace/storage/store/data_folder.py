"""The layout of a data folder: its marker files and the folders of its logs. All functions block.

<data>/clean-shutdown       holds the broker epoch; written last at a clean stop, removed first at start
<data>/flushed-offsets      see `flushed_offsets`
<data>/logs/<topic id, hex>-<partition>/               a log
<data>/logs/<topic id, hex>-<partition>.deleted/       about to be removed
<data>/logs/<topic id, hex>-<partition>.damaged-1/     a damaged log, kept for inspection; Headrace never removes it
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
    """What a data folder held when it was opened."""

    logs: list[LogKey]
    broker_epoch: int | None  # set if the last process to use the folder shut down cleanly
    flushed: FlushedOffsets


def open_data_folder(disk: Disk, path: str) -> DataFolderContents:
    disk.make_directory(f"{path}/logs")
    disk.lock(path)
    broker_epoch, marker = None, f"{path}/{MARKER}"
    if disk.exists(marker):
        text = disk.read(marker).strip()
        broker_epoch = int(text) if text.isdigit() else None
        disk.remove(marker)
    disk.sync_directory(path)
    keys: list[LogKey] = []
    for name in disk.list(f"{path}/logs"):
        if name.endswith(DELETED):
            disk.remove_tree(f"{path}/logs/{name}")
        elif found := LOG_FOLDER.fullmatch(name):
            keys.append((UUID(hex=found[1]), int(found[2])))
        elif DAMAGED_FOLDER.fullmatch(name):
            logger.warning("damaged log is kept; remove it when it is not needed folder=%s/logs/%s", path, name)
        else:
            logger.warning("not a log of this broker, ignored folder=%s/logs/%s", path, name)
    disk.sync_directory(f"{path}/logs")
    flushed = FlushedOffsets(disk, path)
    # A flushed point without a log stays, also if a damaged log of this partition was kept: the log that replaced it
    # may have been lost. If a crash came before the replacement, the log is found missing and replaced again.
    flushed.sync()  # the flushed points of a killed process must survive the next power failure
    disk.sync_directory(path)
    return DataFolderContents(keys, broker_epoch, flushed)


def write_clean_shutdown_marker(disk: Disk, path: str, broker_epoch: int) -> None:
    """Record a clean shutdown, durably."""
    disk.write_atomically(f"{path}/{MARKER}", b"%d" % broker_epoch)


def remove_folders(disk: Disk, parent: str, folders: list[str], flushed: FlushedOffsets) -> None:
    """Remove logs: first their flushed points, then all names at once, so that no half-removed log is ever found."""
    flushed.sync()
    for folder in folders:
        disk.rename(folder, folder + DELETED)
    disk.sync_directory(parent)
    for folder in folders:
        disk.remove_tree(folder + DELETED)
    disk.sync_directory(parent)


def rename_damaged_folder(disk: Disk, parent: str, name: str) -> str:
    """Give the folder of a damaged log a new name, durably. Returns the name."""
    names, number = disk.list(parent), 1
    while f"{name}.damaged-{number}" in names:
        number += 1
    disk.rename(f"{parent}/{name}", f"{parent}/{name}.damaged-{number}")
    disk.sync_directory(parent)
    return f"{name}.damaged-{number}"


def folder_name(key: LogKey) -> str:
    return f"{key[0].hex}-{key[1]}"
