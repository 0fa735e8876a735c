"""An archive, and the catalogue of one topic in it: read, add and merge files.

- The manifest decides which files are valid. A file is added in three steps: write it to the staging folder, create the
  manifest entry, move it to its final name.
- So a file with a final name is always named by an entry. A reader that uses only the folder, such as Spark or DuckDB,
  may briefly miss the newest rows, but never reads a row twice.
- An interruption before the last step leaves a file that readers of the manifest find in the staging folder, and that
  the next writer moves to its final name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from headrace.archive.errors import ArchiveConflict, ArchiveDamaged, ArchiveGap, ArchiveOfAnotherTopic, NotInArchive
from headrace.archive.manifest import FORMAT, ArchivedFile, ArchivedFiles, ArchiveManifest, Entry
from headrace.archive.names import MANIFEST_FOLDER, parse_file_name
from headrace.archive.parquet_files import check_digest, read_file
from headrace.archive.storage import ArchiveStorage, open_storage
from headrace.columns.schema import COLUMNS
from headrace.model.names import check_topic_name
from headrace.runtime.entropy import SystemEntropy


class Archive:
    """All topics of one archive; `location` is a path or a URI."""

    def __init__(self, location: str, storage: ArchiveStorage | None = None) -> None:
        self.location = location
        self.storage = storage or open_storage(location)

    def topics(self) -> Sequence[str]:
        """The topics that have a manifest."""
        return [name for name in self.storage.folders() if self.storage.files(f"{name}/{MANIFEST_FOLDER}")]

    def open(self, topic: str) -> ArchiveCatalogue:
        """The current catalogue of a topic; empty if nothing was archived."""
        return ArchiveCatalogue(self, topic)

    def existing(self, topic: str) -> ArchiveCatalogue:
        """The catalogue of an archived topic. Raises NotInArchive."""
        catalogue = self.open(topic)
        if catalogue.topic_id is None:
            raise NotInArchive(f"{self.location} holds nothing of a topic {topic!r}")
        return catalogue

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] = COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """The archived rows of [start, end), in order."""
        return self.existing(topic).read(partition, start, end, columns)


class ArchiveCatalogue:
    """The archived files of one topic."""

    def __init__(self, archive: Archive, topic: str) -> None:
        self.topic = check_topic_name(topic)
        self.location = archive.location
        self.storage = archive.storage
        self._manifest = ArchiveManifest(self.storage, topic)
        self._manifest.load()
        self.all_files: ArchivedFiles = self._manifest.files

    @property
    def topic_id(self) -> str | None:
        """The id of the archived topic; None while nothing was archived."""
        return self._manifest.topic_id

    @property
    def partitions(self) -> Sequence[int]:
        return self.all_files.partitions

    def files(self, partition: int, start: int, end: int) -> Sequence[ArchivedFile]:
        """The files that overlap [start, end)."""
        return self.all_files.files_within(partition, start, end)

    def start_offset(self, partition: int) -> int | None:
        """The first archived offset; None if there is none."""
        files = self.all_files.of(partition)
        return files[0].first if files else None

    def end_offset(self, partition: int) -> int | None:
        """The offset after the last archived one; None if there is none."""
        files = self.all_files.of(partition)
        return files[-1].last + 1 if files else None

    def refresh(self) -> None:
        """Read the changes of other writers."""
        self._manifest.refresh()

    def check_topic_id(self, topic_id: str) -> None:
        """Raise ArchiveOfAnotherTopic if the archive belongs to a deleted topic of the same name."""
        if self.topic_id not in (None, topic_id):
            raise ArchiveOfAnotherTopic(
                f"{self.location} holds a topic {self.topic!r} that was deleted (id {self.topic_id}); the present "
                f"topic has the id {topic_id}; move the folder {self.topic} away, or archive to another path"
            )

    # Read

    def read(
        self, partition: int, start: int, end: int, columns: Sequence[str] = COLUMNS, *, checked: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end), in order. With `checked`, the checksum of each file is verified first."""
        position = start
        while (file := self.all_files.file_at_or_after(partition, position)) is not None and file.first < end:
            try:
                if checked:
                    check_digest(self.storage, self.topic, file)
                for batch, end_of_batch in read_file(self.storage, self.topic, file, position, end, columns):
                    yield batch
                    position = end_of_batch
                position = file.last + 1
            except FileNotFoundError:
                self._check_merged(file)

    def _check_merged(self, file: ArchivedFile) -> None:
        """A missing file may have been merged with others meanwhile; otherwise it is lost."""
        self.refresh()
        if self.all_files.file_named(file.name) is not None:
            raise ArchiveDamaged(f"{self.location}: {self.topic}/{file.name} is in the manifest but missing")

    # Write

    def add(self, topic_id: str, files: Sequence[ArchivedFile], *, gaps: bool = False) -> None:
        """Add staged files to the archive, each after the last file of its partition.

        Raises ArchiveConflict if another writer has archived these offsets meanwhile, and ArchiveGap if offsets would
        be skipped, unless `gaps` is set because they are permanently gone.
        """
        while True:
            self.check_topic_id(topic_id)
            self._check_ends(files, gaps)
            if self._append(topic_id, files, ()):
                break
            self.refresh()
        self._move_to_final_names(files)

    def merge(self, merged: ArchivedFile, parts: Sequence[ArchivedFile]) -> None:
        """Replace files by a staged file with the same rows. Raises ArchiveConflict if one of them is gone."""
        assert (parts[0].first, parts[-1].last) == (merged.first, merged.last)
        assert self.topic_id is not None
        while not self._append(self.topic_id, [merged], [part.name for part in parts]):
            self.refresh()
        self._delete_files(parts)
        self._move_to_final_names([merged])

    def settle(self) -> None:
        """Finish the changes of interrupted writers: remove merged files, move added files to their final names."""
        # List before refreshing: an entry exists before its file gets a final name, so the refresh reads it.
        present = {found.name for found in self.storage.files(self.topic)}
        self.refresh()
        for name in present:
            if self._is_merged(name):
                self.storage.delete(f"{self.topic}/{name}")
        self._move_to_final_names([file for file in self.all_files if file.name not in present])

    def discard(self, file: ArchivedFile) -> None:
        """Remove a staged file, unless it has become part of the archive."""
        self.refresh()
        named = self.all_files.file_named(file.name)
        if named is None or named.staged != file.staged:
            self.storage.delete(f"{self.topic}/{file.staged}")

    def _is_merged(self, name: str) -> bool:
        """Whether a file with a final name was replaced by one that covers it. Names are not reused."""
        covered = parse_file_name(name)
        if covered is None:
            return False
        by = self.all_files.file_at_or_after(covered.partition, covered.first)
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
                    f"{self.topic}[{file.partition}] is archived up to {end} already, by another archiver"
                )
            if end is not None and file.first > end and not gaps:
                raise ArchiveGap(f"{self.topic}[{file.partition}] is archived up to {end}; {file.name} leaves a gap")
            ends[file.partition] = file.last + 1

    def _delete_files(self, files: Sequence[ArchivedFile]) -> None:
        # Staged names first: a concurrent move gives the file the name that is deleted next.
        for file in files:
            self.storage.delete(f"{self.topic}/{file.staged}")
            self.storage.delete(f"{self.topic}/{file.name}")

    def _move_to_final_names(self, files: Sequence[ArchivedFile]) -> None:
        for file in files:
            # Another process may have moved it.
            with suppress(FileNotFoundError):
                self.storage.move(f"{self.topic}/{file.staged}", f"{self.topic}/{file.name}")
