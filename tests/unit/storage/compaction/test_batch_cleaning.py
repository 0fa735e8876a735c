"""Looking into stored batches: every record is found where it lies, and what cannot be read is left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.storage.compaction.batch_cleaning import (
    AbortedTransactions,
    CompactionRules,
    make_empty_batch,
    rebuild_batch,
    unpack_records,
)
from headrace.storage.compaction.offset_map import OffsetMap
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch, check_crc, parse_header, read_records
from headrace.wire.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

sizes = st.sampled_from([0, 1, 62, 63, 64, 100, 8190, 8191, 8192, 20_000])
parts = st.one_of(st.none(), sizes.map(lambda size: b"x" * size))
records = st.builds(
    BatchRecord,
    parts,
    parts,
    st.lists(st.tuples(st.sampled_from(["", "name"]), parts), max_size=2),
    st.sampled_from([0, 1, 63, 64, 10_000, 1 << 41]),
)


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]))
def test_every_record_is_found_where_it_lies(made: list[BatchRecord], compression: int) -> None:
    batch = bytes(build_batch(made, base_offset=100, compression=compression))
    header = parse_header(batch)
    unpacked = unpack_records(batch, header)
    assert unpacked is not None
    data, found = unpacked
    assert [(delta, key, has_value) for _, _, delta, key, has_value in found] == [
        (at, record.key, record.value is not None) for at, record in enumerate(made)
    ]
    for horizon_ms in (None, 0, 1 << 42):
        for kept in (found, found[::2]):
            again = rebuild_batch(data, kept, header, horizon_ms)
            header_again = parse_header(again)
            check_crc(memoryview(again), header_again)
            deltas = [delta for _, _, delta, *_ in kept]
            expected = list(read_records(memoryview(batch), header, 1 << 30))
            expected = [record for record in expected if record.offset - 100 in deltas]
            assert list(read_records(memoryview(again), header_again, 1 << 30)) == expected
            assert header_again.last_offset == header.last_offset


def test_offset_deltas_of_three_bytes_are_read() -> None:
    made = [BatchRecord(b"%d" % at, b"") for at in range(10_000)]
    batch = bytes(build_batch(made))
    unpacked = unpack_records(batch, parse_header(batch))
    assert unpacked is not None
    assert [(delta, key) for _, _, delta, key, _ in unpacked[1]] == [(at, b"%d" % at) for at in range(10_000)]


@given(st.binary(max_size=60), st.integers(1, 5), st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]))
def test_a_batch_that_cannot_be_read_stays_as_it_is(garbage: bytes, count: int, compression: int) -> None:
    batch = build_batch([BatchRecord(b"k", b"v")] * count, compression=compression)[:61] + garbage
    header = parse_header(batch)
    newest, aborted = OffsetMap(100), AbortedTransactions([])
    rules = CompactionRules({}, newest=newest, end_offset=1 << 40, aborted=aborted, now_ms=0, delete_retention_ms=0)
    rules.newest.put(b"k", 1 << 30)
    if unpack_records(bytes(batch), header) is None:
        unread = bytes(batch)
        assert rules.clean(unread, header) is unread


def test_a_batch_is_aborted_only_within_its_producer_s_aborted_transactions() -> None:
    aborted = AbortedTransactions(
        [AbortedTransaction(1, 20, 25), AbortedTransaction(1, 5, 9), AbortedTransaction(2, 0, 100)]
    )
    for offset in range(30):
        header = parse_header(
            build_batch([BatchRecord(b"k", b"v")], base_offset=offset, producer_id=1, attributes=TRANSACTIONAL)
        )
        assert aborted.holds(header) == (5 <= offset <= 9 or 20 <= offset <= 25)
    plain = parse_header(build_batch([BatchRecord(b"k", b"v")], base_offset=22, producer_id=1))
    assert not aborted.holds(plain)


def test_what_is_left_of_an_emptied_batch_is_what_its_producer_needs() -> None:
    header = parse_header(
        build_batch(
            [BatchRecord(b"k", b"v", timestamp_ms=7)] * 3,
            base_offset=5,
            compression=GZIP,
            producer_id=9,
            producer_epoch=2,
            base_sequence=40,
        )
    )
    batch = make_empty_batch(header)
    left = parse_header(batch)
    check_crc(memoryview(batch), left)
    assert (left.size_bytes, left.record_count, left.compression) == (61, 0, NONE)
    assert (left.base_offset, left.last_offset, left.max_timestamp) == (5, 7, 7)
    assert (left.producer_id, left.producer_epoch, left.base_sequence, left.last_sequence) == (9, 2, 40, 42)
    assert list(read_records(memoryview(batch), left, 100)) == []
