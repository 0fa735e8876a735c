"""Digests of records: of rows, of blocks of a partition, and of single fields.

- Arrow kernels convert a row to unique bytes, which are hashed. Headers that state the origin of a replayed record are
  left out.
- A block is a part of a partition whose end depends only on the records. Two partitions with the same records have the
  same blocks, and an added or removed record changes only the block that contains it.
- Digests of adjacent blocks can be joined, so a partition may be read in ranges that are not aligned to blocks.
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
"""The average number of records in a block."""

_PRIME = (1 << 127) - 1
_BASE = 0x5BD1E9955BD1E9955BD1E9955BD1E99
_DIGEST_BYTES = 16

MatchBy: TypeAlias = Literal["offset", "origin", "content"]
"""How records are identified: by offset, by the source offset in their headers, or not at all."""


class DigestOptions(msgspec.Struct, frozen=True, gc=False):
    """How the records of one source are digested. With `by` = origin, records of other partitions have no identity.
    Only records of [from_ms, to_ms) count."""

    by: MatchBy
    timestamps: bool
    origin_topic: str = ""
    origin_partition: int = 0
    block_records: int = BLOCK_RECORDS
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        needs_time = self.timestamps or self.from_ms is not None or self.to_ms is not None
        return ("key", "value", "offset", "timestamp", "headers") if needs_time else _COLUMNS


_COLUMNS = ("key", "value", "offset", "headers")


class RowSpan(msgspec.Struct, frozen=True, gc=False):
    """Rows of one range, by row number: in a damaged log offsets need not ascend."""

    range_index: int
    first_row: int
    count: int


class DigestBlock(msgspec.Struct, frozen=True, gc=False):
    """All identities in a block are of one `group`. Records without identity belong to the preceding group, which is
    None at the start of a range. A block that is not closed may continue in the next range."""

    spans: tuple[RowSpan, ...]
    count: int
    digest: int
    group: int | None
    is_closed: bool

    @property
    def sum(self) -> tuple[int, int]:
        return self.digest, self.count

    def with_next(self, other: DigestBlock) -> DigestBlock:
        digest = (self.digest * pow(_BASE, other.count, _PRIME) + other.digest) % _PRIME
        return DigestBlock(self.spans + other.spans, self.count + other.count, digest, self.group, other.is_closed)


def digest_blocks(batches: Iterable[Any], options: DigestOptions, range_index: int = 0) -> Iterator[DigestBlock]:
    """The blocks of a range; `join_blocks` joins them with those of adjacent ranges."""
    row = count = total = 0
    group: int | None = None
    previous = b""

    def new_block(is_closed: bool) -> DigestBlock:
        return DigestBlock((RowSpan(range_index, row - count, count),), count, total, group, is_closed)

    for batch in batches:
        identities = identities_of(batch, options)
        for identity, digest in zip(identities, row_digests(batch, options, identities), strict=True):
            if identity is not None and identity // options.block_records != group:
                if count:
                    yield new_block(False)
                    count = total = 0
                group = identity // options.block_records
            number = int.from_bytes(digest)
            row += 1
            count += 1
            total = (total * _BASE + number) % _PRIME
            # A run of equal records is one block: otherwise a block might end at each of them.
            is_end = number % options.block_records == 0 and previous not in (b"", digest)
            if is_end and options.by == "content":
                yield new_block(True)
                count = total = 0
            previous = digest
    if count:
        yield new_block(False)


def join_blocks(ranges: Iterable[Sequence[DigestBlock]]) -> list[DigestBlock]:
    """The blocks of consecutive ranges, as if these had been read as one range."""
    whole: list[DigestBlock] = []
    for some in ranges:
        for block in some:
            if whole and not whole[-1].is_closed and block.group in (None, whole[-1].group):
                whole[-1] = whole[-1].with_next(block)
            else:
                whole.append(block)
    return whole


def record_digests(batch: Any, options: DigestOptions) -> list[RecordDigest]:
    times = pc.cast(batch.column("timestamp"), pa.int64()).to_pylist() if options.timestamps else [None] * len(batch)
    rows = zip(
        batch.column("offset").to_pylist(),
        identities_of(batch, options),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("headers").to_pylist(),
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
                for header in headers or ()
                if not header["key"].startswith(ORIGIN_PREFIX)
            ),
            None if time is None else time // 1000,
        )
        for offset, identity, key, value, headers, time in rows
    ]


def identities_of(batch: Any, options: DigestOptions) -> list[int | None]:
    if options.by == "offset":
        offsets: list[int | None] = batch.column("offset").to_pylist()
        return offsets
    found: list[int | None] = [None] * len(batch)
    if options.by == "origin":
        topics, partitions, origins = (
            _last_values(batch.column("headers"), name) for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)
        )
        wanted = options.origin_topic.encode(), b"%d" % options.origin_partition
        for row, origin in origins.items():
            if (topics.get(row), partitions.get(row)) == wanted and origin is not None and origin.isdigit():
                found[row] = int(origin)
    return found


def row_digests(batch: Any, options: DigestOptions, identities: Sequence[int | None]) -> Iterator[bytes]:
    """The digest of each row: its identity and its content."""
    which = batch.column("offset") if options.by == "offset" else pa.array(identities, pa.int64())
    columns = [_number_texts(which), *_sized(batch.column("key")), *_sized(batch.column("value"))]
    if options.timestamps:
        # In milliseconds, as in the log: finer digits only come from the file format.
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
    """The length of each value (`-` for null), and the value."""
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
    """List offsets into the result of `flatten`, which omits values outside of the column and below its nulls."""
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
