"""Those who want to know when a partition has more to read."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Somebody who wants to know that there is more to read, or that the partition is gone."""

    def on_moved(self, new_bytes: int) -> None: ...

    def on_committed(self) -> None:
        """Of one that copies: more is committed, which it is told with the next answer. That is not worth one."""
        ...


class Watchers:
    """`readers` are told of what is committed, `copiers` of everything that is appended."""

    __slots__ = ("copiers", "readers")

    def __init__(self) -> None:
        self.readers: dict[Watcher, None] = {}
        self.copiers: dict[Watcher, None] = {}

    def __len__(self) -> int:
        return len(self.readers) + len(self.copiers)

    def add(self, watcher: Watcher, *, copies: bool) -> None:
        (self.copiers if copies else self.readers)[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        self.readers.pop(watcher, None)
        self.copiers.pop(watcher, None)

    def appended(self, new_bytes: int) -> None:
        _tell(self.copiers, new_bytes)

    def committed(self, new_bytes: int) -> None:
        self.moved()
        _tell(self.readers, new_bytes)

    def moved(self) -> None:
        """Something has changed that copiers are told with their next answer."""
        for copier in self.copiers:
            copier.on_committed()

    def gone(self) -> None:
        """Nothing more will come here: look elsewhere."""
        _tell(self.readers, 0)
        _tell(self.copiers, 0)


def _tell(watchers: dict[Watcher, None], new_bytes: int) -> None:
    if watchers:
        for watcher in tuple(watchers):
            watcher.on_moved(new_bytes)
