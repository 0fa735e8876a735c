"""Emptying a log so that it begins at another offset: for a follower that has nothing in common with its leader.

The file `restart` in the log's folder, written atomically, is the decision: from then on all the other files are void,
whatever crash comes, and whoever finds it removes them. Before that the old log stands, and only its flushed point is
lowered, which must not promise what the new log will not have.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk
from headrace.storage.see_through import see_through
from headrace.storage.start_offset import write_start_offset
from headrace.storage.swap import DRAFTS

if TYPE_CHECKING:
    from headrace.storage.log import Log

RESTART = "restart"
_DECISION = Struct(">qI")


async def restart_at(log: Log, offset: int) -> None:
    await see_through(_restart_at(log, offset))


async def _restart_at(log: Log, offset: int) -> None:
    async with log.upkeep():
        log.ensure_usable()
        with log.slot.lowered(offset, 0, 0):
            try:
                await log.disk.run(_decide, log, offset)
            except StorageFailure as error:
                if log.disk.exists(f"{log.folder}/{RESTART}"):
                    log.fail(error)  # nobody knows whether the decision is durable: the next start will find out
                raise
            log.ensure_usable()  # else the decision stands, and the next start carries it out
            log.begin_anew(offset)
        try:
            await log.disk.run(finish, log.disk, log.folder)
        except StorageFailure as error:
            log.fail(error)
            raise
        assert log.end_offset == offset, "appended to while it was emptied"
        log.slot.record(offset, offset, 0)
        log.checkpoint_offset = -1
        log.unsaved_bytes = 0


def finish(disk: Disk, folder: str) -> bool:
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


def _decide(log: Log, offset: int) -> None:
    log.slot.sync()
    decision = _DECISION.pack(offset, crc32(b"%d" % offset))
    log.disk.write_atomically(f"{log.folder}/{RESTART}", decision)


def _read_decision(disk: Disk, folder: str) -> int | None:
    try:
        offset, crc = _DECISION.unpack(disk.read(f"{folder}/{RESTART}"))
    except struct_error:
        return None
    return int(offset) if crc == crc32(b"%d" % offset) else None
