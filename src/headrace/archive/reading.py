"""One file of an archive as record batches, with exactly the types of `columns.schema`.

Row groups that lie outside the wanted offsets are not read. A file is looked for where it belongs, and where it was
staged in case that nobody has come round to putting it in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive.errors import ArchiveDamaged
from headrace.archive.manifest import ArchivedFile
from headrace.archive.place import ArchiveStorage
from headrace.columns.schema import COLUMNS, schema_of

ROWS_PER_BATCH = 65536
_HASHED_BYTES = 1 << 20


def read_file(
    place: ArchiveStorage, topic: str, file: ArchivedFile, start: int, end: int, columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of [start, end), and with each batch the offset behind it. Raises FileNotFoundError if it is gone."""
    schema = schema_of(columns)
    wanted = list(dict.fromkeys((*columns, "offset")))
    with open_file(place, topic, file) as source:
        try:
            parquet = pq.ParquetFile(source)
            groups = _groups_within(parquet, start, end)
            for batch in parquet.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=wanted) if groups else ():
                offsets = batch.column(batch.schema.get_field_index("offset"))
                low, high = _first_at(offsets, start), _first_at(offsets, end)
                if low < high:
                    rows = batch.slice(low, high - low)
                    yield rows.select(schema.names).cast(schema), offsets[high - 1].as_py() + 1
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:  # pyarrow has no class of its own for pages that make no sense
            raise ArchiveDamaged(f"{topic}/{file.name} cannot be read: {error}") from error


def open_file(place: ArchiveStorage, topic: str, file: ArchivedFile) -> Any:
    # It may be put in place between the first look and the second.
    for name in (file.name, file.staged):
        try:
            return place.open(f"{topic}/{name}")
        except FileNotFoundError:
            pass
    return place.open(f"{topic}/{file.name}")


def digest_of(place: ArchiveStorage, topic: str, file: ArchivedFile) -> tuple[str, int]:
    """The SHA-256 of the bytes as they are now, and how many there are."""
    digest, size = hashlib.sha256(), 0
    with open_file(place, topic, file) as source:
        while data := source.read(_HASHED_BYTES):
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size


def check_digest(place: ArchiveStorage, topic: str, file: ArchivedFile) -> None:
    """Raises ArchiveDamaged if the bytes are not those that were written."""
    found, size = digest_of(place, topic, file)
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
        # The columns before `offset` are flat, so its number among the leaves is the same.
        statistics = about.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.min < end and statistics.max >= start):
            found.append(number)
    return found


def _first_at(offsets: pa.Array, wanted: int) -> int:
    """The index of the first offset that is not before `wanted`; offsets ascend."""
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        if offsets[middle].as_py() < wanted:
            low = middle + 1
        else:
            high = middle
    return low
