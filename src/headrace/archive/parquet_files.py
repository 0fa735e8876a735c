"""Write and read the Parquet files of an archive, with exactly the types of `columns.schema`.

- A file is hashed while it is written. It lies in the staging folder under a unique name until a manifest entry names
  it, so an interrupted writer leaves nothing that a reader counts.
- Row groups outside the wanted offsets are not read.
- A file is opened under its final name or, if its writer was interrupted before moving it, in the staging folder.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import FORMAT, ArchivedFile
from headrace.archive.names import file_name, staged_name
from headrace.archive.storage import ArchiveStorage
from headrace.columns.schema import ARROW_SCHEMA, COLUMNS, schema_of
from headrace.runtime.entropy import SystemEntropy

ROWS_PER_BATCH = 65536

_DELTA = dict.fromkeys(("offset", "timestamp"), "DELTA_BINARY_PACKED")
_REPEATED = ["key", "topic", "partition", "timestampType", "headers.list.element.key"]
_SEARCHED = ["topic", "partition", "offset", "timestamp", "timestampType", "key"]


class FileOptions(msgspec.Struct, frozen=True):
    """How files are written. A reader loads one row group at a time."""

    compression: str = "zstd"
    row_group_bytes: int = 32 * 1024 * 1024


class FileContents(msgspec.Struct, frozen=True):
    """The content of a file: a range of offsets of one partition, `last` included, of the topic with this id."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int


def write_file(
    storage: ArchiveStorage, contents: FileContents, batches: Iterable[pa.RecordBatch], rules: FileOptions | None = None
) -> ArchivedFile:
    """Write rows, in the order of their offsets, to a staged file. It is not part of the archive yet."""
    rules = rules or FileOptions()
    name = file_name(contents.partition, contents.first, contents.last)
    staged = staged_name(name, SystemEntropy().uuid().hex)
    checked = _RowCheck(contents)
    with storage.writing(f"{contents.topic}/{staged}") as file:
        hashed = _HashingFile(file)
        with pq.ParquetWriter(
            hashed,
            ARROW_SCHEMA.with_metadata(_file_metadata(contents)),
            compression=rules.compression,
            use_dictionary=_REPEATED,
            column_encoding=_DELTA,
            write_statistics=_SEARCHED,
        ) as writer:
            for group in _row_groups(checked.rows(batches), rules.row_group_bytes):
                writer.write_table(group, row_group_size=max(1, group.num_rows))
    return ArchivedFile(
        name=name,
        partition=contents.partition,
        first=contents.first,
        last=contents.last,
        records=checked.records,
        bytes=hashed.size_bytes,
        sha256=hashed.digest.hexdigest(),
        timestamp_min=checked.timestamp_min,
        timestamp_max=checked.timestamp_max,
        staged=staged,
    )


def _file_metadata(contents: FileContents) -> dict[str, str]:
    return {"headrace.format": str(FORMAT)} | {
        f"headrace.{name}": str(value) for name, value in msgspec.structs.asdict(contents).items()
    }


def _row_groups(batches: Iterable[pa.RecordBatch], bytes_min: int) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= bytes_min:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


class _RowCheck:
    """Counts the rows and checks their offsets. Rows out of order or out of range are a bug of the caller."""

    def __init__(self, contents: FileContents) -> None:
        self.records = 0
        self.timestamp_min: int | None = None
        self.timestamp_max: int | None = None
        self._next = contents.first
        self._last = contents.last

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                self._check(batch)
                yield batch.select(ARROW_SCHEMA.names).cast(ARROW_SCHEMA)

    def _check(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        assert self._next <= first <= last <= self._last, (self._next, first, last, self._last)
        self._next = last + 1
        self.records += batch.num_rows
        bounds = pc.min_max(batch.column("timestamp").cast(pa.int64()))
        low, high = bounds["min"].as_py() // 1000, bounds["max"].as_py() // 1000
        self.timestamp_min = low if self.timestamp_min is None else min(self.timestamp_min, low)
        self.timestamp_max = high if self.timestamp_max is None else max(self.timestamp_max, high)


class _HashingFile:
    """An append-only file that computes the digest of its content."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        self._file = file

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self._file.write(data)
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """The storage flushes and closes the file."""

    def close(self) -> None:
        """The storage flushes and closes the file."""


def read_file(
    storage: ArchiveStorage, topic: str, file: ArchivedFile, start: int, end: int, columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of [start, end); with each batch, the offset after it. Raises FileNotFoundError if there is no file."""
    schema = schema_of(columns)
    wanted = list(dict.fromkeys((*columns, "offset")))
    with open_file(storage, topic, file) as source:
        try:
            parquet = pq.ParquetFile(source)
            groups = _groups_within(parquet, start, end)
            for batch in parquet.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=wanted) if groups else ():
                offsets = batch.column(batch.schema.get_field_index("offset"))
                low, high = (bisect_left(offsets, edge, key=lambda offset: offset.as_py()) for edge in (start, end))
                if low < high:
                    rows = batch.slice(low, high - low)
                    yield rows.select(schema.names).cast(schema), offsets[high - 1].as_py() + 1
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:  # pyarrow has no error class for malformed pages
            raise ArchiveDamaged(f"{topic}/{file.name} cannot be read: {error}") from error


def open_file(storage: ArchiveStorage, topic: str, file: ArchivedFile) -> Any:
    # The file may be moved to its final name between the first two attempts.
    for name in (file.name, file.staged):
        try:
            return storage.open(f"{topic}/{name}")
        except FileNotFoundError:
            pass
    return storage.open(f"{topic}/{file.name}")


def check_digest(storage: ArchiveStorage, topic: str, file: ArchivedFile) -> None:
    """Raise ArchiveDamaged if the stored file differs from the manifest."""
    with open_file(storage, topic, file) as source:
        found, size = hashlib.file_digest(source, "sha256").hexdigest(), source.size()
    if (found, size) != (file.sha256, file.bytes):
        raise ArchiveDamaged(
            f"{topic}/{file.name} has {size} bytes with the checksum {found[:12]}..., "
            f"where the manifest has {file.bytes} with {file.sha256[:12]}..."
        )


def _groups_within(parquet: pq.ParquetFile, start: int, end: int) -> list[int]:
    about = parquet.metadata
    column = parquet.schema_arrow.get_field_index("offset")
    found = []
    for number in range(about.num_row_groups):
        # The columns before `offset` are not nested, so its index among the leaf columns is the same.
        statistics = about.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.min < end and statistics.max >= start):
            found.append(number)
    return found
