"""An archive, and the catalogue of one topic in it.

What counts is what the manifest names. Adding a file goes: write it to the staging folder, create the entry, put it
in place. So a file that is in place is named by an entry, always; and whoever looks only at the folder, as Spark and
DuckDB do, may for a moment not see the newest rows, but never sees a row twice. Whoever is broken off between the
entry and the last step leaves a file that readers by manifest find in the staging folder, and that the next writer
puts in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from headrace.archive.errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveGap,
    ArchiveOfAnotherTopic,
    NotInArchive,
)
from headrace.archive.manifest import FORMAT, ArchivedFile, ArchivedFiles, ArchiveManifest, Entry
from headrace.archive.names import MANIFEST_FOLDER, parse_file_name
from headrace.archive.parquet_files import check_digest, read_file
from headrace.archive.storage import ArchiveStorage, open_storage
from headrace.columns.schema import COLUMNS
from headrace.model.names import check_topic_name
from headrace.runtime.entropy import SystemEntropy


class Archive:
    """All topics of one archive; `location` is a path or a URI."""

    def __init__(self, location: str, place: ArchiveStorage | None = None) -> None:
        self.location = location
        self.place = place or open_storage(location)

    def topics(self) -> Sequence[str]:
        """The topics that have a manifest."""
        return [name for name in self.place.folders() if self.place.files(f"{name}/{MANIFEST_FOLDER}")]

    def open(self, topic: str) -> ArchiveCatalogue:
        """The catalogue as it is now; empty if nothing of the topic was archived."""
        return ArchiveCatalogue(self, topic)

    def existing(self, topic: str) -> ArchiveCatalogue:
        """The catalogue of a topic that is there; raises NotInArchive."""
        catalogue = self.open(topic)
        if catalogue.topic_id is None:
            raise NotInArchive(f"{self.location} holds nothing of a topic {topic!r}")
        return catalogue

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] = COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end) that were archived, in order."""
        return self.existing(topic).read(partition, start, end, columns)


class ArchiveCatalogue:
    """What an archive holds of one topic."""

    def __init__(self, archive: Archive, topic: str) -> None:
        self.topic = check_topic_name(topic)
        self.location = archive.location
        self.place = archive.place
        self._manifest = ArchiveManifest(self.place, topic)
        self._manifest.load()

    @property
    def topic_id(self) -> str | None:
        """Of which topic it is; None while nothing was archived."""
        return self._manifest.topic_id

    @property
    def all_files(self) -> ArchivedFiles:
        return self._manifest.files

    @property
    def partitions(self) -> Sequence[int]:
        return self._manifest.files.partitions

    def files(self, partition: int, start: int, end: int) -> Sequence[ArchivedFile]:
        """The files that cover anything of [start, end)."""
        return self._manifest.files.files_within(partition, start, end)

    def start_offset(self, partition: int) -> int | None:
        """The first offset that is covered; None if none is."""
        files = self._manifest.files.of(partition)
        return files[0].first if files else None

    def end_offset(self, partition: int) -> int | None:
        """The offset behind the last that is covered; None if none is."""
        files = self._manifest.files.of(partition)
        return files[-1].last + 1 if files else None

    def refresh(self) -> None:
        """See what others have done since."""
        self._manifest.refresh()

    def check_topic_id(self, topic_id: str) -> None:
        """Raises ArchiveOfAnotherTopic if what is here came from a topic of this name that is no more."""
        if self.topic_id not in (None, topic_id):
            raise ArchiveOfAnotherTopic(
                f"{self.location} holds a topic {self.topic!r} that was deleted (id {self.topic_id}), and the one that "
                f"there is now has the id {topic_id}; move the folder {self.topic} away, or archive to another path"
            )

    # --- reading ---

    def read(
        self, partition: int, start: int, end: int, columns: Sequence[str] = COLUMNS, *, checked: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end) in order; `checked` verifies the checksum of each file before it is read."""
        position = start
        while (file := self._manifest.files.file_at_or_after(partition, position)) is not None and file.first < end:
            try:
                if checked:
                    check_digest(self.place, self.topic, file)
                for batch, end_of_batch in read_file(self.place, self.topic, file, position, end, columns):
                    yield batch
                    position = end_of_batch
                position = file.last + 1
            except FileNotFoundError:
                self._check_merged(file)

    def _check_merged(self, file: ArchivedFile) -> None:
        """A file may vanish because it was merged with others meanwhile; else it is lost."""
        self.refresh()
        if self._manifest.files.file_named(file.name) is not None:
            raise ArchiveDamaged(f"{self.location}: {self.topic}/{file.name} is in the manifest, but is not there")

    # --- writing ---

    def add(self, topic_id: str, files: Sequence[ArchivedFile], *, gaps: bool = False) -> None:
        """Make staged files part of the archive, each behind the last of its partition.

        Raises ArchiveConflict if somebody else has archived these offsets meanwhile, and ArchiveGap if offsets between
        would be left out, unless `gaps` says that they are gone for good.
        """
        while True:
            self.check_topic_id(topic_id)
            self._check_ends(files, gaps)
            if self._append(topic_id, files, ()):
                break
            self.refresh()
        self._move_to_final_names(files)

    def merge(self, merged: ArchivedFile, parts: Sequence[ArchivedFile]) -> None:
        """Put a staged file in the place of others with the same rows; ArchiveConflict if one of those is gone."""
        assert (parts[0].first, parts[-1].last) == (merged.first, merged.last)
        assert self.topic_id is not None
        while not self._append(self.topic_id, [merged], [part.name for part in parts]):
            self.refresh()
        self._delete_files(parts)
        self._move_to_final_names([merged])

    def settle(self) -> None:
        """Finish what others were broken off at: remove what was merged, put in place what was added."""
        # In this order: what is in place was named before, so an entry that is read now tells of it.
        present = {found.name for found in self.place.files(self.topic)}
        self.refresh()
        files = self._manifest.files
        for name in present:
            if self._is_merged(name):
                self.place.delete(f"{self.topic}/{name}")
        self._move_to_final_names([file for file in files if file.name not in present])

    def discard(self, file: ArchivedFile) -> None:
        """Remove a staged file, unless it has become part of the archive after all."""
        self.refresh()
        named = self._manifest.files.file_named(file.name)
        if named is None or named.staged != file.staged:
            self.place.delete(f"{self.topic}/{file.staged}")

    def _is_merged(self, name: str) -> bool:
        """Whether a file in place was replaced by one that covers it; names do not come twice."""
        covered = parse_file_name(name)
        if covered is None:
            return False
        by = self._manifest.files.file_at_or_after(covered.partition, covered.first)
        return by is not None and by.range != covered and by.first <= covered.first and covered.last <= by.last

    def _append(self, topic_id: str, added: Sequence[ArchivedFile], removed: Sequence[str]) -> bool:
        writer = SystemEntropy().uuid().hex
        return self._manifest.append(Entry(FORMAT, self.topic, topic_id, writer, added, removed))

    def _check_ends(self, files: Sequence[ArchivedFile], gaps: bool) -> None:
        ends = {partition: self.end_offset(partition) for partition in self.partitions}
        for file in files:
            end = ends.get(file.partition)
            if end is not None and file.first < end:
                raise ArchiveConflict(
                    f"{self.topic}[{file.partition}] is archived up to {end} already, by somebody else"
                )
            if end is not None and file.first > end and not gaps:
                raise ArchiveGap(f"{self.topic}[{file.partition}] is archived up to {end}; {file.name} leaves a gap")
            ends[file.partition] = file.last + 1

    def _delete_files(self, files: Sequence[ArchivedFile]) -> None:
        # Staged first: who moves one meanwhile moves it to where it is deleted next.
        for file in files:
            self.place.delete(f"{self.topic}/{file.staged}")
            self.place.delete(f"{self.topic}/{file.name}")

    def _move_to_final_names(self, files: Sequence[ArchivedFile]) -> None:
        for file in files:
            # Somebody else may have done it.
            with suppress(FileNotFoundError):
                self.place.move(f"{self.topic}/{file.staged}", f"{self.topic}/{file.name}")
