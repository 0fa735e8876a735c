"""Varints and ids."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.primitives import read_uvarint, read_varint, uuid_of, uvarint, varint


@given(st.integers(0, (1 << 32) - 1))
def test_unsigned_varints_survive_a_round_trip(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(b"?" + data + b"?", 1) == (value, 1 + len(data))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_varints_survive_a_round_trip(value: int) -> None:
    data = varint(value)
    assert read_varint(b"?" + data + b"?", 1) == (value, 1 + len(data))


def test_small_numbers_have_short_varints() -> None:
    assert [varint(value) for value in (0, -1, 1, -64, 63, 64)] == [
        b"\0",
        b"\1",
        b"\2",
        b"\x7f",
        b"\x7e",
        b"\x80\1",
    ]


def test_a_varint_that_is_too_long_is_malformed() -> None:
    for length in (5, 6, 20):
        with pytest.raises(MalformedFrame):
            read_uvarint(b"\xff" * length, 0)
    with pytest.raises(MalformedFrame):
        read_varint(b"\xff" * 20, 0)
    for read in (read_uvarint, read_varint):
        with pytest.raises(IndexError):
            read(b"\xff\xff", 0)


def test_uuids_are_cached() -> None:
    topic_id = UUID(int=12345)
    assert uuid_of(topic_id.bytes) == topic_id
    assert uuid_of(topic_id.bytes) is uuid_of(topic_id.bytes)
