"""The watchers of a partition, which are notified of new records."""

from __future__ import annotations

from typing import Protocol


class PartitionWatcher(Protocol):
    """Is notified when the partition has new records, or gets no more records on this broker."""

    def on_data_available(self, new_bytes: int) -> None: ...

    def on_high_watermark(self) -> None:
        """For followers: the high watermark has advanced. The next response reports it, but a waiting fetch does not
        respond early because of it."""
        ...


class PartitionWatchers:
    """`readers` are notified of committed records, `followers` of all appended records."""

    __slots__ = ("followers", "readers")

    def __init__(self) -> None:
        self.readers: dict[PartitionWatcher, None] = {}
        self.followers: dict[PartitionWatcher, None] = {}

    def __len__(self) -> int:
        return len(self.readers) + len(self.followers)

    def add(self, watcher: PartitionWatcher, *, is_follower: bool) -> None:
        (self.followers if is_follower else self.readers)[watcher] = None

    def remove(self, watcher: PartitionWatcher) -> None:
        self.readers.pop(watcher, None)
        self.followers.pop(watcher, None)

    def appended(self, new_bytes: int) -> None:
        _notify(self.followers, new_bytes)

    def committed(self, new_bytes: int) -> None:
        self.moved()
        _notify(self.readers, new_bytes)

    def moved(self) -> None:
        """Notify followers of a change that their next response reports."""
        for follower in self.followers:
            follower.on_high_watermark()

    def gone(self) -> None:
        """Wake all watchers, because this replica will get no more records."""
        _notify(self.readers, 0)
        _notify(self.followers, 0)


def _notify(watchers: dict[PartitionWatcher, None], new_bytes: int) -> None:
    if watchers:
        for watcher in tuple(watchers):
            watcher.on_data_available(new_bytes)
