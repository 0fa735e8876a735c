"""What a checkpoint says about the batch that Spark is about to run.

Spark writes the offsets of a batch to `offsets/<batch id>` of the checkpoint before the batch runs, and reads them from
there when it runs the batch again. So their digest names the content of a batch: with the same number and another
digest it is another batch, as happens after a checkpoint was restored from a backup.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

_HEADER_LINES: Final = 2  # the version of the format, and the time and settings of the batch


class PlannedBatch(msgspec.Struct, frozen=True):
    batch_id: int
    digest: str


def planned_batch(location: str | None) -> PlannedBatch | None:
    """The batch that was planned last; None if the checkpoint is not in a file system that can be read from here."""
    folder = _local(location)
    if folder is None:
        return None
    offsets = os.path.join(folder, "offsets")
    try:
        batch_id = max((int(name) for name in os.listdir(offsets) if name.isascii() and name.isdigit()), default=None)
        if batch_id is None:
            return None
        with open(os.path.join(offsets, str(batch_id)), encoding="utf-8") as file:
            sources = file.read().splitlines()[_HEADER_LINES:]
    except (OSError, UnicodeDecodeError):
        return None
    return PlannedBatch(batch_id, sha256("\n".join(sources).encode()).hexdigest())


def _local(location: str | None) -> str | None:
    if not location:
        return None
    parts = urlsplit(location)
    if not parts.scheme:
        return location
    return unquote(parts.path) if parts.scheme == "file" else None
