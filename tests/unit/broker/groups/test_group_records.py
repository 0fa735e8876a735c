"""Events of the group coordinator round-trip through records of `__consumer_offsets`."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.group_records import StoredGroup, group_record, offset_record, read_record
from headrace.machines.groups.group_offsets import CommittedOffset, OffsetCommitted, OffsetForgotten
from headrace.wire.state_records.offsets_records import GroupMemberMetadata, GroupMetadataValue

names = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.uuids() | st.just(UUID(int=0))
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
offsets = st.builds(CommittedOffset, int64s, int32s, names, int64s, st.just(-1), ids)
members = st.builds(
    GroupMemberMetadata,
    names,
    st.none() | names,
    names,
    names,
    int32s,
    int32s,
    st.binary(max_size=20),
    st.binary(max_size=20),
)
snapshots = st.builds(
    GroupMetadataValue,
    names,
    int32s,
    st.none() | names,
    st.none() | names,
    int64s,
    st.lists(members, max_size=3),
)


@given(st.builds(OffsetCommitted, names, names, int32s, offsets) | st.builds(OffsetForgotten, names, names, int32s))
def test_an_offset_record_round_trips(event: OffsetCommitted | OffsetForgotten) -> None:
    key, value = offset_record(event)
    assert (value is None) == isinstance(event, OffsetForgotten)
    assert read_record(key, value) == event


@given(names, st.none() | snapshots)
def test_a_group_record_round_trips(group_id: str, snapshot: GroupMetadataValue | None) -> None:
    key, value = group_record(group_id, snapshot)
    assert (value is None) == (snapshot is None)
    assert read_record(key, value) == StoredGroup(group_id, snapshot)


def test_keys_of_other_kinds_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    for kind in (4, 9, 15, 17):
        assert read_record(bytes([0, kind]) + b"whatever", b"\0\0") is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b"x"),
        (b"\xff\xff", None),
        (b"\0\x01\0\x05gr", None),
        (group_record("g", None)[0], b"\0\x63"),
        (group_record("g", None)[0], b""),
        (offset_record(OffsetForgotten("g", "t", 0))[0], b"\0\x04\0"),
    ],
)
def test_an_unreadable_record_is_logged_and_skipped(
    key: bytes, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert read_record(key, value) is None
    assert "__consumer_offsets" in caplog.text
