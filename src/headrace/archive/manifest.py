"""The manifest of a topic: numbered entries that add and remove files. Applied in order, they list the valid files.

- An entry is never changed. It is created only if its number is free, so of two archivers that planned on the same
  state one gets a conflict.
- Files that no entry names are not part of the archive, wherever they are.
- A snapshot combines all entries up to a number, so that opening an archive does not read the whole history. Its
  entries are kept, because a late archiver could otherwise create an entry with a number that has become free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from headrace.archive.errors import ArchiveConflict, ArchiveDamaged, ArchiveOfAnotherTopic
from headrace.archive.names import (
    MANIFEST_FOLDER,
    FileRange,
    entry_name,
    parse_file_name,
    parse_snapshot_name,
    snapshot_name,
)
from headrace.archive.storage import ArchiveStorage

FORMAT = 1
ENTRIES_PER_SNAPSHOT = 64
_SNAPSHOTS_KEPT = 2

_Part = TypeVar("_Part", bound="Entry | Snapshot")


class ArchivedFile(msgspec.Struct, frozen=True, gc=False):
    """One Parquet file, which covers the offsets [first, last]. Timestamps are milliseconds since 1970, None without
    rows. `staged` is its name when it was added; an interrupted writer may have left it there."""

    name: str
    partition: int
    first: int
    last: int
    records: int
    bytes: int
    sha256: str
    timestamp_min: int | None
    timestamp_max: int | None
    staged: str

    @property
    def range(self) -> FileRange:
        return FileRange(self.partition, self.first, self.last)


class Entry(msgspec.Struct, frozen=True):
    """One change of the manifest. `writer` is unique, to distinguish otherwise equal entries."""

    format: int
    topic: str
    topic_id: str
    writer: str
    added: Sequence[ArchivedFile] = ()
    removed: Sequence[str] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """The valid files after the entries up to `sequence`."""

    format: int
    topic: str
    topic_id: str
    sequence: int
    files: Sequence[ArchivedFile]


class ArchivedFiles:
    """The valid files, by partition and offset; they do not overlap."""

    def __init__(self, files: Iterable[ArchivedFile] = ()) -> None:
        self._by_partition: dict[int, list[ArchivedFile]] = {}
        self.change(files, ())

    def __iter__(self) -> Iterator[ArchivedFile]:
        for partition in self.partitions:
            yield from self._by_partition[partition]

    @property
    def partitions(self) -> Sequence[int]:
        return sorted(self._by_partition)

    def of(self, partition: int) -> Sequence[ArchivedFile]:
        return self._by_partition.get(partition, ())

    def file_named(self, name: str) -> ArchivedFile | None:
        parsed = parse_file_name(name)
        found = None if parsed is None else self.file_at_or_after(parsed.partition, parsed.first)
        return found if found is not None and found.name == name else None

    def file_at_or_after(self, partition: int, offset: int) -> ArchivedFile | None:
        """The file that covers an offset, or else the next one."""
        files = self.of(partition)
        at = bisect_left(files, offset, key=lambda file: file.last)
        return files[at] if at < len(files) else None

    def files_within(self, partition: int, start: int, end: int) -> Sequence[ArchivedFile]:
        """The files that overlap [start, end)."""
        if start >= end:
            return ()
        files = self.of(partition)
        low = bisect_left(files, start, key=lambda file: file.last)
        high = bisect_left(files, end, key=lambda file: file.first)
        return files[low:high]

    def check(self, added: Sequence[ArchivedFile], removed: Iterable[str]) -> None:
        """Raise ArchiveConflict if the change is not possible."""
        gone = set(removed)
        for name in gone:
            if self.file_named(name) is None:
                raise ArchiveConflict(f"{name} is not in the archive any more")
        for number, file in enumerate(added):
            staying = (
                other
                for other in self.files_within(file.partition, file.first, file.last + 1)
                if other.name not in gone
            )
            for other in (*staying, *added[:number]):
                if other.partition == file.partition and other.first <= file.last and file.first <= other.last:
                    raise ArchiveConflict(f"{file.name} would cover offsets that {other.name} has")

    def change(self, added: Iterable[ArchivedFile], removed: Iterable[str]) -> None:
        """Apply a change that `check` has accepted."""
        for name in removed:
            file = self.file_named(name)
            assert file is not None
            self._by_partition[file.partition].remove(file)
            if not self._by_partition[file.partition]:
                del self._by_partition[file.partition]
        for file in added:
            insort(self._by_partition.setdefault(file.partition, []), file, key=lambda other: other.first)


class ArchiveManifest:
    """The manifest of one topic. `sequence` is the number of the last entry read, -1 before the first."""

    def __init__(self, storage: ArchiveStorage, topic: str) -> None:
        self.topic = topic
        self.topic_id: str | None = None
        self.sequence = -1
        self.files = ArchivedFiles()
        self._storage = storage
        self._snapshot_sequence = -1

    def load(self) -> None:
        """Read the newest snapshot and the entries after it."""
        while (sequences := self._snapshots()) and sequences[-1] > self._snapshot_sequence:
            name = snapshot_name(sequences[-1])
            # A writer that creates a newer snapshot removes the older ones.
            with suppress(FileNotFoundError):
                snapshot = self._decoded(name, self._storage.read(f"{self.topic}/{name}"), Snapshot)
                self.topic_id, self.sequence = snapshot.topic_id, snapshot.sequence
                self.files = ArchivedFiles(snapshot.files)
                self._snapshot_sequence = snapshot.sequence
        self.refresh()

    def refresh(self) -> None:
        """Read the entries that were added since."""
        while True:
            name = entry_name(self.sequence + 1)
            try:
                data = self._storage.read(f"{self.topic}/{name}")
            except FileNotFoundError:
                return
            self._apply(name, self._decoded(name, data, Entry))

    def append(self, entry: Entry) -> bool:
        """Create the next entry. False if another writer has created it; `refresh` reads it then."""
        self.files.check(entry.added, entry.removed)
        name = entry_name(self.sequence + 1)
        if not self._storage.create(f"{self.topic}/{name}", msgspec.json.encode(entry)):
            return False
        self.sequence += 1
        self.topic_id = entry.topic_id
        self.files.change(entry.added, entry.removed)
        if self.sequence - self._snapshot_sequence >= ENTRIES_PER_SNAPSHOT:
            self._take_snapshot()
        return True

    def _apply(self, name: str, entry: Entry) -> None:
        if self.topic_id not in (None, entry.topic_id):
            raise ArchiveOfAnotherTopic(
                f"entry {name} of the archive of {self.topic!r} belongs to another topic of that name; "
                "archivers of two clusters have written to the same archive"
            )
        try:
            self.files.check(entry.added, entry.removed)
        except ArchiveConflict as error:
            raise ArchiveDamaged(f"entry {name} of {self.topic!r} contradicts those before: {error.message}") from error
        self.files.change(entry.added, entry.removed)
        self.topic_id = entry.topic_id
        self.sequence += 1

    def _take_snapshot(self) -> None:
        assert self.topic_id is not None
        snapshot = Snapshot(FORMAT, self.topic, self.topic_id, self.sequence, list(self.files))
        # A concurrent writer of the same snapshot writes the same content.
        self._storage.create(f"{self.topic}/{snapshot_name(self.sequence)}", msgspec.json.encode(snapshot))
        self._snapshot_sequence = self.sequence
        for old in self._snapshots()[:-_SNAPSHOTS_KEPT]:
            self._storage.delete(f"{self.topic}/{snapshot_name(old)}")

    def _snapshots(self) -> Sequence[int]:
        listed = self._storage.files(f"{self.topic}/{MANIFEST_FOLDER}")
        return sorted(number for found in listed if (number := parse_snapshot_name(found.name)) is not None)

    def _decoded(self, name: str, data: bytes, kind: type[_Part]) -> _Part:
        try:
            about: Mapping[str, object] = msgspec.json.decode(data, type=dict)
            if about.get("format") == FORMAT:
                return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{self.topic}/{name} cannot be read: {error}") from error
        found = about.get("format")
        raise ArchiveDamaged(f"{self.topic}/{name} has format {found}, supported is {FORMAT}; upgrade Headrace")
