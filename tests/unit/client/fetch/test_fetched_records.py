"""Decoding a Fetch response returns only records that the application may see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.fetch.fetched_records import FetchedRecords
from headrace.client.metadata import TopicPartition
from headrace.model.errors import CorruptMessage, MessageTooLarge
from headrace.wire.batches.batch import CONTROL, TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.messages.fetch import FetchAbortedTransaction

TARGET = TopicPartition("orders", 0)


def batch(base_offset: int, *values: bytes, producer_id: int = -1, attributes: int = 0, compression: int = 0) -> bytes:
    records = [BatchRecord(value=value) for value in values]
    made = build_batch(
        records, base_offset=base_offset, producer_id=producer_id, attributes=attributes, compression=compression
    )
    return bytes(made)


def marker(offset: int, producer_id: int) -> bytes:
    return batch(offset, b"\0\0", producer_id=producer_id, attributes=CONTROL | TRANSACTIONAL)


def read(
    data: bytes, position: int = 0, aborted: list[FetchAbortedTransaction] | None = None
) -> tuple[list[bytes | None], int]:
    fetched = FetchedRecords(TARGET, memoryview(data), position, aborted)
    values = [record.value for record in fetched]
    assert fetched.next_offset == fetched.end_offset
    return values, fetched.next_offset


def test_records_before_the_position_are_left_out() -> None:
    assert read(batch(10, b"a", b"b", b"c"), position=11) == ([b"b", b"c"], 13)


def test_a_batch_that_was_cut_off_is_left_for_the_next_fetch() -> None:
    whole, cut = batch(0, b"a"), batch(1, b"b")
    for length in range(len(cut)):
        assert read(whole + cut[:length]) == ([b"a"], 1)


def test_a_first_batch_that_does_not_fit_raises() -> None:
    with pytest.raises(MessageTooLarge):
        read(batch(0, b"a")[:-1])


def test_control_batches_are_passed_over() -> None:
    data = batch(0, b"a", producer_id=7, attributes=TRANSACTIONAL) + marker(1, 7) + batch(2, b"b") + marker(3, 7)
    assert read(data) == ([b"a", b"b"], 4)


def test_aborted_transactions_are_left_out_and_their_producers_later_ones_are_not() -> None:
    data = (
        batch(0, b"lost", producer_id=7, attributes=TRANSACTIONAL)
        + batch(1, b"kept", producer_id=8, attributes=TRANSACTIONAL)
        + batch(2, b"lost too", producer_id=7, attributes=TRANSACTIONAL)
        + batch(3, b"plain", producer_id=7)
        + marker(4, 7)
        + batch(5, b"next", producer_id=7, attributes=TRANSACTIONAL)
    )
    aborted = [FetchAbortedTransaction(producer_id=7, first_offset=0)]
    assert read(data, aborted=aborted) == ([b"kept", b"plain", b"next"], 6)


def test_a_record_with_a_flipped_bit_is_corrupt_and_not_returned() -> None:
    data = bytearray(batch(0, b"good") + batch(1, b"bad"))
    data[-2] ^= 4
    fetched = FetchedRecords(TARGET, memoryview(data), 0)
    given_so_far: list[bytes | None] = []
    with pytest.raises(CorruptMessage):
        given_so_far.extend(record.value for record in fetched)
    assert fetched.next_offset == 1


@given(
    batches=st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=5), min_size=1, max_size=5),
    compression=st.integers(0, 4),
    data=st.data(),
)
def test_any_position_returns_exactly_the_remaining_records(
    batches: list[list[bytes]], compression: int, data: st.DataObject
) -> None:
    encoded = b""
    values: list[bytes] = []
    for content in batches:
        encoded += batch(len(values), *content, compression=compression)
        values += content
    position = data.draw(st.integers(0, len(values)))
    assert read(encoded, position) == (values[position:], len(values))
