"""Verify that an archive matches its manifest: read every byte once and compare.

- Damage is lost or altered data. Leftovers are not damage: files that an interrupted writer has not moved or deleted,
  and files that no manifest entry names.
- `repair` finishes interrupted moves and deletions, and moves unlisted files aside, where plain Parquet readers do not
  count them. It deletes nothing that may be the only copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow.compute as pc

from headrace.archive.catalogue import ArchiveCatalogue
from headrace.archive.compaction import sweep
from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.names import MANIFEST_FOLDER, parse_file_name
from headrace.archive.parquet_files import check_digest, read_file

QUARANTINE_FOLDER = f"{MANIFEST_FOLDER}/aside"


class ArchiveFault(msgspec.Struct, frozen=True):
    """A difference between archive and manifest; `damaged` if rows are lost or altered."""

    topic: str
    file: str
    what: str
    damaged: bool = False


class UnarchivedRange(msgspec.Struct, frozen=True):
    """Offsets between two files that were never archived: [first, last]."""

    topic: str
    partition: int
    first: int
    last: int


def verify(catalogue: ArchiveCatalogue) -> Iterator[ArchiveFault]:
    """Read every file and yield all faults."""
    present = {found.name for found in catalogue.storage.files(catalogue.topic)}
    catalogue.refresh()
    for file in catalogue.all_files:
        faults = list(_file_faults(catalogue, file))
        yield from faults
        if not faults and file.name not in present:
            yield ArchiveFault(catalogue.topic, file.name, "it is not in place yet: plain readers do not see its rows")
    for name in unlisted_files(catalogue):
        yield ArchiveFault(catalogue.topic, name, "no entry names it: plain readers count its rows in addition")


def gaps(catalogue: ArchiveCatalogue) -> Iterator[UnarchivedRange]:
    """The offsets missing between files, because retention removed them before they were archived."""
    before: ArchivedFile | None = None
    for file in catalogue.all_files:
        if before is not None and before.partition == file.partition and before.last + 1 < file.first:
            yield UnarchivedRange(catalogue.topic, file.partition, before.last + 1, file.first - 1)
        before = file


def repair(catalogue: ArchiveCatalogue, now_ms: int) -> int:
    """Finish interrupted changes and clear away leftovers. Returns the number of files cleared away."""
    catalogue.settle()
    cleared = sweep(catalogue, now_ms)
    for name in unlisted_files(catalogue):
        catalogue.storage.move(f"{catalogue.topic}/{name}", f"{catalogue.topic}/{QUARANTINE_FOLDER}/{name}")
        cleared += 1
    return cleared


def unlisted_files(catalogue: ArchiveCatalogue) -> list[str]:
    """Files with final names that no manifest entry names."""
    present = [found.name for found in catalogue.storage.files(catalogue.topic)]
    catalogue.refresh()
    return [n for n in present if parse_file_name(n) is not None and catalogue.all_files.file_named(n) is None]


def _file_faults(catalogue: ArchiveCatalogue, file: ArchivedFile) -> Iterator[ArchiveFault]:
    def fault(what: str) -> ArchiveFault:
        return ArchiveFault(catalogue.topic, file.name, what, damaged=True)

    try:
        check_digest(catalogue.storage, catalogue.topic, file)
        records, position = 0, file.first
        for batch, end in read_file(catalogue.storage, catalogue.topic, file, file.first, file.last + 1, ["offset"]):
            offsets = batch.column(0)
            steps = pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
            if offsets[0].as_py() < position or (len(steps) and pc.min(steps).as_py() < 1):
                yield fault("its offsets are not in order")
            records, position = records + len(offsets), end
        if records != file.records:
            yield fault(f"it has {records} rows where the manifest has {file.records}")
    except FileNotFoundError:
        yield fault("it is missing")
    except ArchiveDamaged as error:
        yield fault(error.message)
