"""Records as digests: of whole rows, of pieces of a partition, and, where a look at single fields is needed, of those.

A row becomes one text of bytes by Arrow's kernels, which no other row has, and is hashed as a whole; headers that only
tell where a replayed record comes from are left out. A piece is a part of a partition that ends at a place which
depends on the records alone: so two partitions that have the same records have the same pieces, and a record more or
less changes the piece that it is in and no other. Digests of pieces can be put together, so that a partition may be
read in stretches that nobody aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.message_headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_PREFIX, ORIGIN_TOPIC
from headrace.pipeline.audit.record_comparison import RecordDigest

BLOCK_RECORDS = 4096
"""How many records a piece has, or would have on average."""

_PRIME = (1 << 127) - 1
_BASE = 0x5BD1E9955BD1E9955BD1E9955BD1E99
_DIGEST_BYTES = 16

MatchBy: TypeAlias = Literal["offset", "origin", "content"]
"""By what records know each other: their offset; the offset in the source that their headers tell; nothing."""


class DigestOptions(msgspec.Struct, frozen=True, gc=False):
    """How the records of one side are looked at. With `by` = origin, records of other places have no identity; only
    records of [from_ms, to_ms) count."""

    by: MatchBy
    timestamps: bool
    origin_topic: str = ""
    origin_partition: int = 0
    piece_records: int = BLOCK_RECORDS
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        needs_time = self.timestamps or self.from_ms is not None or self.to_ms is not None
        return ("key", "value", "offset", "timestamp", "headers") if needs_time else _COLUMNS

    def within(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The rows that count."""
        for batch in batches:
            rows = batch
            if self.from_ms is not None:
                rows = rows.filter(pc.greater_equal(pc.cast(rows.column("timestamp"), pa.int64()), self.from_ms * 1000))
            if self.to_ms is not None:
                rows = rows.filter(pc.less(pc.cast(rows.column("timestamp"), pa.int64()), self.to_ms * 1000))
            yield rows


_COLUMNS = ("key", "value", "offset", "headers")


class RowSpan(msgspec.Struct, frozen=True, gc=False):
    """Rows of one stretch: counted as they are read, since offsets need not ascend where something is wrong."""

    stretch: int
    first_row: int
    count: int


class DigestBlock(msgspec.Struct, frozen=True, gc=False):
    """All identities in a piece are of one `block`; what has none belongs to the block before it, which is None where
    the stretch begins with it. A piece that is not closed may go on in the stretch behind it."""

    spans: tuple[RowSpan, ...]
    count: int
    digest: int
    block: int | None
    is_closed: bool

    @property
    def sum(self) -> tuple[int, int]:
        return self.digest, self.count

    def with_next(self, other: DigestBlock) -> DigestBlock:
        digest = (self.digest * pow(_BASE, other.count, _PRIME) + other.digest) % _PRIME
        return DigestBlock(self.spans + other.spans, self.count + other.count, digest, self.block, other.is_closed)


def digest_blocks(batches: Iterable[Any], reading: DigestOptions, stretch: int = 0) -> Iterator[DigestBlock]:
    """The pieces of a stretch; they are joined by `joined` with those of the stretches beside it."""
    row = count = total = 0
    block: int | None = None
    previous = b""

    def piece(is_closed: bool) -> DigestBlock:
        return DigestBlock((RowSpan(stretch, row - count, count),), count, total, block, is_closed)

    for batch in batches:
        identities = identities_of(batch, reading)
        for identity, digest in zip(identities, row_digests(batch, reading, identities), strict=True):
            if identity is not None and identity // reading.piece_records != block:
                if count:
                    yield piece(False)
                    count = total = 0
                block = identity // reading.piece_records
            number = int.from_bytes(digest)
            row += 1
            count += 1
            total = (total * _BASE + number) % _PRIME
            # A run of equal records is one piece: else it might end at each of them.
            is_end = number % reading.piece_records == 0 and previous not in (b"", digest)
            if is_end and reading.by == "content":
                yield piece(True)
                count = total = 0
            previous = digest
    if count:
        yield piece(False)


def join_blocks(stretches: Iterable[Sequence[DigestBlock]]) -> list[DigestBlock]:
    """The pieces of consecutive stretches as if they had been read in one go."""
    whole: list[DigestBlock] = []
    for some in stretches:
        for piece in some:
            if whole and not whole[-1].is_closed and piece.block in (None, whole[-1].block):
                whole[-1] = whole[-1].with_next(piece)
            else:
                whole.append(piece)
    return whole


def record_digests(batch: Any, reading: DigestOptions) -> list[RecordDigest]:
    """For a close look: field by field."""
    headers = batch.column("headers").to_pylist()
    times = pc.cast(batch.column("timestamp"), pa.int64()).to_pylist() if reading.timestamps else [None] * len(headers)
    rows = zip(
        batch.column("offset").to_pylist(),
        identities_of(batch, reading),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        headers,
        times,
        strict=True,
    )
    return [
        RecordDigest(
            offset,
            identity,
            _digest_of(key),
            _digest_of(value),
            tuple(
                (header["key"], _digest_of(header["value"]))
                for header in told or ()
                if not header["key"].startswith(ORIGIN_PREFIX)
            ),
            None if time is None else time // 1000,
        )
        for offset, identity, key, value, told, time in rows
    ]


def identities_of(batch: Any, reading: DigestOptions) -> list[int | None]:
    if reading.by == "offset":
        offsets: list[int | None] = batch.column("offset").to_pylist()
        return offsets
    found: list[int | None] = [None] * len(batch)
    if reading.by == "origin":
        topics, partitions, origins = (
            _last_values(batch.column("headers"), name) for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)
        )
        wanted = reading.origin_topic.encode(), b"%d" % reading.origin_partition
        for row, origin in origins.items():
            if (topics.get(row), partitions.get(row)) == wanted and origin is not None and origin.isdigit():
                found[row] = int(origin)
    return found


def row_digests(batch: Any, reading: DigestOptions, identities: Sequence[int | None]) -> Iterator[bytes]:
    """Of each row: which record it is, and what it holds."""
    which = batch.column("offset") if reading.by == "offset" else pa.array(identities, pa.int64())
    columns = [_number_texts(which), *_sized(batch.column("key")), *_sized(batch.column("value"))]
    if reading.timestamps:
        # To the millisecond, as the wire has it: finer than that is nothing but how a file stores it.
        columns.append(_number_texts(pc.divide(pc.cast(batch.column("timestamp"), pa.int64()), 1000)))
    columns.append(_header_texts(batch.column("headers")))
    texts = pc.binary_join_element_wise(*columns, b":")
    _, offsets, data = texts.buffers()
    if not len(texts):
        return
    bounds = memoryview(offsets).cast("i")[texts.offset : texts.offset + len(texts) + 1]
    view = memoryview(data)
    for start, end in pairwise(bounds):
        yield blake2b(view[start:end], digest_size=_DIGEST_BYTES).digest()


def _sized(column: Any) -> tuple[Any, Any]:
    """The length of each value, which is - of none, and the value."""
    column = column.cast(pa.binary())
    return _number_texts(pc.binary_length(column)), pc.fill_null(column, b"")


def _number_texts(column: Any) -> Any:
    return pc.fill_null(column.cast(pa.string()).cast(pa.binary()), b"-")


def _header_texts(column: Any) -> Any:
    flat = column.flatten()
    names = flat.field("key")
    one = pc.binary_join_element_wise(*_sized(names), *_sized(flat.field("value")), b":")
    is_origin = pc.starts_with(names, ORIGIN_PREFIX)
    lists = pa.ListArray.from_arrays(_list_bounds(column), pc.if_else(is_origin, pa.scalar(b"", pa.binary()), one))
    return pc.binary_join(lists, b"")


def _list_bounds(column: Any) -> Any:
    """Offsets into what `flatten` gives, which leaves out what lies outside of the column and under its nulls."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def _last_values(column: Any, name: str) -> dict[int, bytes | None]:
    """The last header of a name, by row."""
    flat = column.flatten()
    is_wanted = pc.equal(flat.field("key"), name)
    rows = pc.list_parent_indices(column).filter(is_wanted).to_pylist()
    return dict(zip(rows, flat.field("value").filter(is_wanted).to_pylist(), strict=True))


def _digest_of(data: bytes | None) -> bytes | None:
    return None if data is None else blake2b(data, digest_size=_DIGEST_BYTES).digest()
