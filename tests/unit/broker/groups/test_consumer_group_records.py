"""Events of consumer-protocol groups round-trip through records of `__consumer_offsets`."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.consumer_group_records import (
    StoredConsumerGroupEvent,
    consumer_group_records,
    group_tombstones,
)
from headrace.broker.groups.group_records import read_record
from headrace.machines.groups.consumer_group_state import (
    ClassicProfile,
    ConsumerGroupEvent,
    CurrentAssignment,
    CurrentAssignmentSet,
    GroupEpochSet,
    MemberMetadata,
    MemberMetadataSet,
    MemberState,
    RegularExpressionResolved,
    TargetAssignmentEpochSet,
    TargetAssignmentSet,
)
from headrace.wire.state_records.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    HeldPartitions,
    encode_consumer_group_key,
    encode_consumer_group_value,
)

names = st.text(st.characters(codec="utf-8"), max_size=20)
some_names = st.frozensets(names, max_size=3)
int32s = st.integers(-(2**31), 2**31 - 1)
partitions = st.tuples(st.uuids(), st.integers(0, 100))
classic_profiles = st.builds(
    ClassicProfile,
    session_timeout_ms=int32s,
    protocols=st.lists(st.tuples(names, st.binary(max_size=9)), min_size=1, max_size=3).map(tuple),
)
metadata_by_member = st.builds(
    MemberMetadata,
    instance_id=st.none() | names,
    rack_id=st.none() | names,
    client_id=names,
    client_host=names,
    topics=some_names,
    regex=names,
    rebalance_timeout_ms=int32s,
    assignor=st.none() | names,
    classic=st.none() | classic_profiles,
)
held = st.dictionaries(partitions, int32s, max_size=4)
current_assignments = st.builds(
    CurrentAssignment,
    epoch=int32s,
    previous_epoch=int32s,
    state=st.sampled_from(MemberState),
    assigned=held,
    revoking=held,
)
events = st.one_of(
    st.builds(GroupEpochSet, int32s, st.integers(-(2**63), 2**63 - 1)),
    st.builds(TargetAssignmentEpochSet, int32s),
    st.builds(MemberMetadataSet, names, st.none() | metadata_by_member),
    st.builds(TargetAssignmentSet, names, st.none() | st.frozensets(partitions, max_size=4)),
    st.builds(CurrentAssignmentSet, names, st.none() | current_assignments),
    st.builds(RegularExpressionResolved, names, st.none() | some_names),
)


@given(group_id=names, event=events)
def test_an_event_survives_its_record(group_id: str, event: ConsumerGroupEvent) -> None:
    ((key, value),) = consumer_group_records(group_id, [event], 1000)
    assert read_record(key, value) == StoredConsumerGroupEvent(group_id, event)


def test_tombstones_end_a_group() -> None:
    read = [read_record(key, value) for key, value in group_tombstones("g")]
    assert read == [StoredConsumerGroupEvent("g", TargetAssignmentEpochSet(0)), StoredConsumerGroupEvent("g", None)]


def _current(**fields: object) -> tuple[bytes, bytes]:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    value = ConsumerGroupCurrentMemberAssignmentValue(**fields)  # type: ignore[arg-type]
    return encode_consumer_group_key(key), encode_consumer_group_value(value)


def test_partitions_without_epochs_count_as_held_since_the_epoch_of_the_member() -> None:
    topic = HeldPartitions(topic_id=UUID(int=1), partitions=[3])
    event = read_record(*_current(member_epoch=7, assigned_partitions=[topic]))
    assert isinstance(event, StoredConsumerGroupEvent)
    assert isinstance(event.event, CurrentAssignmentSet)
    assert event.event.current_assignment is not None
    assert event.event.current_assignment.assigned == {(UUID(int=1), 3): 7}


@pytest.mark.parametrize(
    "fields",
    [
        {"state": 127},
        {"assigned_partitions": [HeldPartitions(topic_id=UUID(int=1), partitions=[3], assignment_epochs=[1, 2])]},
    ],
)
def test_an_invalid_record_is_logged_and_skipped(fields: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert read_record(*_current(**fields)) is None
    assert "invalid record in __consumer_offsets" in caplog.text
