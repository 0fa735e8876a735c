"""Merge small adjacent files into one, so that the manifest names each row exactly once at every moment.

- The merged file is written first. One manifest entry adds it and removes its parts; then the parts are deleted and the
  merged file gets its final name.
- An interruption before the entry leaves a file that no reader counts; after it, `ArchiveCatalogue.settle` finishes the
  merge.
- The checksums of the parts are verified before they are read, so that damage is detected and not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.archive.catalogue import ArchiveCatalogue
from headrace.archive.errors import ArchiveConflict, ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.names import MANIFEST_FOLDER, STAGING_FOLDER
from headrace.archive.parquet_files import FileContents, FileOptions, write_file

TARGET_BYTES = 256 * 1024 * 1024
LEFT_BEHIND_MS = 86_400_000  # a draft that was not written to for a day is abandoned


class FileMerge(NamedTuple):
    file: ArchivedFile
    parts: Sequence[ArchivedFile]


def compact(
    catalogue: ArchiveCatalogue,
    target_bytes: int = TARGET_BYTES,
    rules: FileOptions | None = None,
    *,
    files_min: int = 2,
) -> Iterator[FileMerge]:
    """Merge runs of at least `files_min` files up to the target size. Yields each merge when it is complete."""
    catalogue.settle()
    for parts in mergeable_runs(catalogue, target_bytes, files_min):
        merged = _merged(catalogue, parts, rules)
        try:
            catalogue.merge(merged, parts)
        except ArchiveConflict:
            # Another process has merged these files first.
            catalogue.discard(merged)
        except BaseException:
            catalogue.discard(merged)
            raise
        else:
            yield FileMerge(merged, parts)


def mergeable_runs(
    catalogue: ArchiveCatalogue, target_bytes: int = TARGET_BYTES, files_min: int = 2
) -> list[Sequence[ArchivedFile]]:
    """Runs of adjacent files to merge, each up to the target size."""
    found: list[Sequence[ArchivedFile]] = []
    run: list[ArchivedFile] = []
    size = 0
    for file in catalogue.all_files:
        follows = run and (run[-1].partition, run[-1].last + 1) == (file.partition, file.first)
        if not follows or size + file.bytes > target_bytes:
            found.append(run)
            run, size = [], 0
        run.append(file)
        size += file.bytes
    found.append(run)
    return [run for run in found if len(run) >= max(2, files_min)]


def sweep(catalogue: ArchiveCatalogue, now_ms: int) -> int:
    """Remove the files that interrupted writers have left. Returns how many."""
    old = [
        f"{folder}/{found.name}"
        for folder, prefix in ((STAGING_FOLDER, ""), (MANIFEST_FOLDER, "."))
        for found in catalogue.storage.files(f"{catalogue.topic}/{folder}")
        if found.name.startswith(prefix) and found.modified_ms < now_ms - LEFT_BEHIND_MS
    ]
    catalogue.refresh()  # after listing: a file that was named meanwhile is not left behind
    named = {file.staged for file in catalogue.all_files}
    left = [name for name in old if name not in named]
    for name in left:
        catalogue.storage.delete(f"{catalogue.topic}/{name}")
    return len(left)


def _merged(catalogue: ArchiveCatalogue, parts: Sequence[ArchivedFile], rules: FileOptions | None) -> ArchivedFile:
    assert catalogue.topic_id is not None
    first, last = parts[0].first, parts[-1].last
    subject = FileContents(catalogue.topic, catalogue.topic_id, parts[0].partition, first, last)
    rows: Iterator[pa.RecordBatch] = catalogue.read(subject.partition, first, last + 1, checked=True)
    merged = write_file(catalogue.storage, subject, rows, rules)
    due = sum(part.records for part in parts)
    if merged.records != due:
        catalogue.discard(merged)
        raise ArchiveDamaged(f"{catalogue.topic}: {len(parts)} files have {merged.records} rows in place of {due}")
    return merged
