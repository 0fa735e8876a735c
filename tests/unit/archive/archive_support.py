"""Rows to archive, archives in a folder, and a place that breaks off at a chosen step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.archive.catalogue import Archive, ArchiveCatalogue
from headrace.archive.manifest import ArchivedFile
from headrace.archive.parquet_files import FileContents, FileOptions, write_file
from headrace.archive.storage import LocalArchiveStorage, StoredFile
from headrace.columns.schema import ARROW_SCHEMA

TOPIC = "orders"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def rows_of(partition: int, offsets: Iterable[int], topic: str = TOPIC) -> pa.RecordBatch:
    """Rows with and without key, value and headers."""
    rows = [
        {
            "key": None if offset % 3 == 0 else b"k%d" % offset,
            "value": None if offset % 5 == 4 else b"v%d" % offset * (offset % 4),
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000_000 + 1000 * offset,
            "timestampType": 0,
            "headers": [{"key": "h", "value": None if offset % 2 else b"\x00\xff"}] * (offset % 3),
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def archive_in(folder: Path) -> Archive:
    return Archive(str(folder))


def staged(
    catalogue: ArchiveCatalogue,
    partition: int,
    first: int,
    last: int,
    offsets: Iterable[int] | None = None,
    rules: FileOptions | None = None,
) -> ArchivedFile:
    subject = FileContents(catalogue.topic, TOPIC_ID, partition, first, last)
    batch = rows_of(partition, range(first, last + 1) if offsets is None else offsets)
    return write_file(catalogue.storage, subject, [batch], rules)


def add(catalogue: ArchiveCatalogue, partition: int, *bounds: int) -> Sequence[ArchivedFile]:
    """Archive [bounds[0], bounds[1]), [bounds[1], bounds[2]) and so on, one entry each."""
    files = [staged(catalogue, partition, a, b - 1) for a, b in pairwise(bounds)]
    for file in files:
        catalogue.add(TOPIC_ID, [file])
    return files


def offsets_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def in_place(folder: Path, topic: str = TOPIC) -> list[str]:
    return sorted(path.name for path in (folder / topic).glob("*.parquet"))


class ProcessCrashed(Exception):
    """The process is no more."""


class CrashingStorage:
    """A folder at whose `step`th change the process dies: before it, or, if `after`, when it has just been made."""

    exclusive = True

    def __init__(self, inner: LocalArchiveStorage, step: int = -1, *, after: bool = False) -> None:
        self._inner = inner
        self._step = step
        self._after = after
        self.steps = 0

    def read(self, name: str) -> bytes:
        return self._inner.read(name)

    def open(self, name: str) -> Any:
        return self._inner.open(name)

    def files(self, folder: str) -> Sequence[StoredFile]:
        return self._inner.files(folder)

    def folders(self) -> Sequence[str]:
        return self._inner.folders()

    def create(self, name: str, data: bytes) -> bool:
        with self._change():
            return self._inner.create(name, data)

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        with self._change(), self._inner.writing(name) as file:
            yield file

    def move(self, source: str, target: str) -> None:
        with self._change():
            self._inner.move(source, target)

    def delete(self, name: str) -> None:
        with self._change():
            self._inner.delete(name)

    @contextmanager
    def _change(self) -> Iterator[None]:
        is_due = self._step >= 0 and self.steps >= self._step
        self.steps += 1
        if is_due and not (self._after and self.steps == self._step + 1):
            raise ProcessCrashed
        yield
        if is_due:
            raise ProcessCrashed
