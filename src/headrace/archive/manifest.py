"""The manifest: numbered entries, which add files and remove others. Folded in order they say which files count.

An entry is never changed. It is created only if nobody has created one of its number, so of two archivers that planned
on the same state one is told that the other was faster. Files that no entry names do not count, wherever they lie.
Every so many entries a snapshot holds all before it, so that opening does not read the whole history; the entries are
kept all the same, because a number that is free again would be given to somebody who is late.
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
    """One Parquet file. It covers [first, last]; timestamps are milliseconds since 1970, None in a file without rows.
    `staged` is where it lay when it was added, and may still lie if somebody was broken off."""

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
    """`writer` tells apart two entries that would otherwise be the same."""

    format: int
    topic: str
    topic_id: str
    writer: str
    added: Sequence[ArchivedFile] = ()
    removed: Sequence[str] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """What the entries up to `sequence` come to."""

    format: int
    topic: str
    topic_id: str
    sequence: int
    files: Sequence[ArchivedFile]


class ArchivedFiles:
    """The files that count, by partition and offset; no two of them overlap."""

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
        """The file with this offset, or else the next one."""
        files = self.of(partition)
        at = bisect_left(files, offset, key=lambda file: file.last)
        return files[at] if at < len(files) else None

    def files_within(self, partition: int, start: int, end: int) -> Sequence[ArchivedFile]:
        """The files that cover anything of [start, end)."""
        if start >= end:
            return ()
        files = self.of(partition)
        low = bisect_left(files, start, key=lambda file: file.last)
        high = bisect_left(files, end, key=lambda file: file.first)
        return files[low:high]

    def check(self, added: Sequence[ArchivedFile], removed: Iterable[str]) -> None:
        """Raises ArchiveConflict if this change cannot be made."""
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
        """Make a change that was checked."""
        for name in removed:
            file = self.file_named(name)
            assert file is not None
            self._by_partition[file.partition].remove(file)
            if not self._by_partition[file.partition]:
                del self._by_partition[file.partition]
        for file in added:
            insort(self._by_partition.setdefault(file.partition, []), file, key=lambda other: other.first)


class ArchiveManifest:
    """The manifest of one topic. `sequence` is that of the last entry read, -1 before the first."""

    def __init__(self, place: ArchiveStorage, topic: str) -> None:
        self.topic = topic
        self.topic_id: str | None = None
        self.sequence = -1
        self.files = ArchivedFiles()
        self._place = place
        self._snapshot_sequence = -1

    def load(self) -> None:
        """Read it from the last snapshot on."""
        while (sequences := self._snapshots()) and sequences[-1] > self._snapshot_sequence:
            name = snapshot_name(sequences[-1])
            # Who takes a newer one removes the old ones.
            with suppress(FileNotFoundError):
                snapshot = self._decoded(name, self._place.read(f"{self.topic}/{name}"), Snapshot)
                self.topic_id, self.sequence = snapshot.topic_id, snapshot.sequence
                self.files = ArchivedFiles(snapshot.files)
                self._snapshot_sequence = snapshot.sequence
        self.refresh()

    def refresh(self) -> None:
        """Read what was added since."""
        while True:
            name = entry_name(self.sequence + 1)
            try:
                data = self._place.read(f"{self.topic}/{name}")
            except FileNotFoundError:
                return
            self._apply(name, self._decoded(name, data, Entry))

    def append(self, entry: Entry) -> bool:
        """Create the next entry; False if there is one already, which `refresh` reads."""
        self.files.check(entry.added, entry.removed)
        name = entry_name(self.sequence + 1)
        if not self._place.create(f"{self.topic}/{name}", msgspec.json.encode(entry)):
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
                f"entry {name} of the archive of {self.topic!r} is of another topic of that name; "
                "two archivers have written here for two clusters"
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
        # Whoever else makes one of this number makes the same.
        self._place.create(f"{self.topic}/{snapshot_name(self.sequence)}", msgspec.json.encode(snapshot))
        self._snapshot_sequence = self.sequence
        for old in self._snapshots()[:-_SNAPSHOTS_KEPT]:
            self._place.delete(f"{self.topic}/{snapshot_name(old)}")

    def _snapshots(self) -> Sequence[int]:
        listed = self._place.files(f"{self.topic}/{MANIFEST_FOLDER}")
        return sorted(number for found in listed if (number := parse_snapshot_name(found.name)) is not None)

    def _decoded(self, name: str, data: bytes, kind: type[_Part]) -> _Part:
        try:
            about: Mapping[str, object] = msgspec.json.decode(data, type=dict)
            if about.get("format") == FORMAT:
                return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{self.topic}/{name} cannot be read: {error}") from error
        found = about.get("format")
        raise ArchiveDamaged(f"{self.topic}/{name} is of format {found}, and this version knows {FORMAT}; upgrade it")
