"""The leaders that this data folder has worked with: for each broker, the highest number of a start that led anything.

    <data>/known-leaders     {"<node id>": <number of the start>, ...}

A broker notes a leadership here, durably, before it writes or copies anything in its epoch. So a leadership that is not
noted began while this broker was down. If its epoch is in the broker's log nevertheless, the registry was set back to
an older copy meanwhile: it has handed out the epoch again, and the log has another history than the new leader's. See
docs/decisions/028-leader-epochs-after-a-rollback.md.

A start of a broker has a higher number than all before it, also after the registry was set back (see `membership`), so
one number per broker is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.model.errors import StorageFailure
from headrace.model.partition_record import Leadership
from headrace.runtime.disk import Disk

_NAME = "known-leaders"


class KnownLeaders:
    """`is_new`: the folder has no such file, because it is empty or was last used by a version that wrote none."""

    def __init__(self, disk: Disk, folder: str, node_id: int) -> None:
        self._disk = disk
        self._path = f"{folder}/{_NAME}"
        self._node_id = node_id
        self._starts: dict[int, int] = {}
        self.is_new = True

    async def load(self) -> None:
        found = await self._disk.run(_read, self._disk, self._path)
        if found is not None:
            self._starts, self.is_new = found, False

    def knows(self, leadership: Leadership) -> bool:
        """This broker knows all that it did itself."""
        node_id = leadership.node_id
        return node_id == self._node_id or leadership.broker_epoch <= self._starts.get(node_id, -1)

    async def add(self, leaderships: Iterable[Leadership]) -> None:
        """Durable on return."""
        starts = dict(self._starts)
        for one in leaderships:
            if not self.knows(one):
                starts[one.node_id] = max(one.broker_epoch, starts.get(one.node_id, -1))
        if self.is_new or starts != self._starts:
            await self._disk.run(self._disk.write_atomically, self._path, msgspec.json.encode(starts))
            self._starts, self.is_new = starts, False


def _read(disk: Disk, path: str) -> dict[int, int] | None:
    if not disk.exists(path):
        return None
    try:
        return msgspec.json.decode(disk.read(path), type=dict[int, int])
    except msgspec.MsgspecError as error:
        raise StorageFailure(
            f"{path} is damaged: {error}; remove it. If the registry was restored from an older copy since this broker "
            "ran last, run `headrace registry rebuild` before the start; see docs/operations.md"
        ) from error
