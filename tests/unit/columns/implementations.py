"""The two ways to do everything here: by the compiled library, and in Python alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
import pytest

from headrace.columns import decode, encode
from headrace.columns.decode import ColumnReader
from headrace.columns.native import CLibrary, library
from headrace.columns.schema import COLUMNS
from headrace.wire.messages.fetch import FetchAbortedTransaction

NATIVE = pytest.param("native", marks=pytest.mark.skipif(library() is None, reason="the library was not built"))
BOTH_IMPLEMENTATIONS = pytest.mark.parametrize("way", [NATIVE, "pure"])
NEEDS_LIBRARY = pytest.mark.skipif(library() is None, reason="the library was not built")


def the_library() -> CLibrary:
    found = library()
    assert found is not None
    return found


@contextmanager
def using_implementation(way: str) -> Iterator[None]:
    """Do what is done within by this way."""
    chosen = the_library() if way == "native" else None
    with (
        mock.patch.object(decode, "library", return_value=chosen),
        mock.patch.object(encode, "library", return_value=chosen),
    ):
        yield


def read(
    way: str,
    answers: Sequence[bytes | bytearray],
    start: int = 0,
    end: int = 1 << 40,
    *,
    columns: Sequence[str] = COLUMNS,
    aborted: Sequence[FetchAbortedTransaction] = (),
    read_committed: bool = True,
    rows_max: int = 1 << 16,
    bytes_max: int = 1 << 20,
) -> tuple[list[pa.RecordBatch], int]:
    """What a reader makes of these answers, and the offset behind them."""
    with using_implementation(way):
        reader = ColumnReader("orders", 3, columns, start, end, read_committed=read_committed)
    taken = []
    for answer in answers:
        reader.add(memoryview(answer), aborted)
        while (rows := reader.take(rows_max, bytes_max)) is not None:
            taken.append(rows)
    if (rows := reader.rest()) is not None:
        taken.append(rows)
    for rows in taken:
        rows.validate(full=True)
    return taken, reader.next_offset


def rows_of(taken: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for rows in taken for row in rows.to_pylist()]
