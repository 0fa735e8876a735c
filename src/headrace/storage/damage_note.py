"""The file `damaged` of a log: in which segment damage was found while the broker was running.

- Recovery takes what lies below the checkpoint as recorded. Without this file the next start would take the log for
  sound, serve it again, and let it lead, until the damage is found once more; it would never be copied again.
- The file holds the base offset of the segment. Recovery checks that segment as a whole. If it is sound after all, the
  file is removed: the disk or the memory has erred only once.
"""

from __future__ import annotations

from headrace.runtime.disk import Disk

DAMAGED = "damaged"


def write_damaged(disk: Disk, folder: str, base_offset: int) -> None:
    """Durably. Blocks."""
    disk.write_atomically(f"{folder}/{DAMAGED}", b"%d" % base_offset)


def read_damaged(disk: Disk, folder: str) -> int | None:
    """The base offset of the segment; None if the file cannot be read any more."""
    text = disk.read(f"{folder}/{DAMAGED}")
    return int(text) if text.isdigit() else None
