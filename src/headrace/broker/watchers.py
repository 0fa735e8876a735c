"""The watchers of a partition, which are notified of new records."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Is notified when there are new records, or when the partition is gone."""

    def on_moved(self, new_bytes: int) -> None: ...

    def on_committed(self) -> None:
        """For followers: the high watermark has advanced. They learn it with the next response, which is not sent for
        this reason alone."""
        ...


class Watchers:
    """`readers` are notified of committed records, `copiers` (followers) of all appended records."""

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
        """Wake followers, because something has changed that their next response reports."""
        for copier in self.copiers:
            copier.on_committed()

    def gone(self) -> None:
        """Wake all watchers, because this replica will get no more records."""
        _tell(self.readers, 0)
        _tell(self.copiers, 0)


def _tell(watchers: dict[Watcher, None], new_bytes: int) -> None:
    if watchers:
        for watcher in tuple(watchers):
            watcher.on_moved(new_bytes)
