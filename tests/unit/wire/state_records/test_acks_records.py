"""Events of acks logs are readable JSON; other records are rejected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Failed,
    Reconciled,
    Settled,
    SnapshotEvent,
    Sought,
    decode_event,
    encode_event,
)

SNAPSHOT = b'{"type":"snapshot","at":1,"id":1,"part":1,"parts":1,"subscriptions":1,"floor":0'

offsets = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**53)
pairs = st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair)))
failed_ranges = st.builds(
    lambda pair, *rest: (*pair, *rest), pairs, st.integers(0, 1000), times, st.text(max_size=5), st.booleans()
)
events = st.one_of(
    st.builds(Created, times, offsets),
    st.builds(Deleted, times),
    st.builds(Settled, times, st.sampled_from(["ack", "dead", "gap", "expired"]), st.lists(pairs, max_size=4)),
    st.builds(
        lambda at, pair, *rest: Failed(at, pair[0], pair[1], *rest),
        times,
        pairs,
        st.integers(0, 1000),
        times,
        st.text(max_size=5),
        st.booleans(),
    ),
    st.builds(Sought, times, offsets),
    st.builds(Reconciled, times, st.integers(0, 2**31 - 1)),
    st.builds(
        SnapshotEvent,
        times,
        offsets,
        st.integers(1, 9),
        st.integers(1, 9),
        st.integers(1, 9),
        offsets,
        st.binary(max_size=9),
        st.lists(failed_ranges, max_size=3),
    ),
)


@given(st.text(min_size=1), events)
def test_an_event_survives_a_round_trip(subscription: str, event: AcksEvent) -> None:
    assert decode_event(*encode_event(subscription, event)) == (subscription, event)


def test_an_event_is_json_and_begins_with_its_type() -> None:
    key, value = encode_event("workers", Settled(1_763_280_000_000, "ack", [(100, 199), (300, 300)]))
    assert key == b"workers"
    assert value == b'{"type":"settled","at":1763280000000,"how":"ack","ranges":[[100,199],[300,300]]}'


def test_a_failure_has_its_reason() -> None:
    value = encode_event("workers", Failed(10, 5, 6, 2, 99, "the disk is full"))[1]
    assert json.loads(value) == {
        "type": "failed",
        "at": 10,
        "first": 5,
        "last": 6,
        "attempts": 2,
        "due_ms": 99,
        "reason": "the disk is full",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b'{"type":"deleted","at":1}'),
        (b"", b'{"type":"deleted","at":1}'),
        (b"s", None),
        (b"s", b""),
        (b"\xff", b'{"type":"deleted","at":1}'),
        (b"s", b'{"type":"unheard-of","at":1}'),
        (b"s", b'{"type":"created","at":1}'),
        (b"s", b'{"type":"created","at":1,"floor":-1}'),
        (b"s", b'{"type":"created","at":1,"floor":"0"}'),
        (b"s", b'{"type":"settled","at":1,"how":"somehow","ranges":[]}'),
        (b"s", b'{"type":"settled","at":1,"how":"ack","ranges":[[2,1]]}'),
        (b"s", b'{"type":"settled","at":1,"how":"ack","ranges":[[2]]}'),
        (b"s", b'{"type":"failed","at":1,"first":2,"last":1,"attempts":1,"due_ms":1}'),
        (b"s", SNAPSHOT + b',"settled":"?"}'),
        (b"s", SNAPSHOT + b',"failed":[[2,1,1,1,"",true]]}'),
    ],
)
def test_a_record_that_is_not_an_event_is_rejected(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(MalformedFrame):
        decode_event(key, value)


@given(events, st.data())
def test_every_truncation_is_rejected(event: AcksEvent, data: st.DataObject) -> None:
    key, value = encode_event("s", event)
    length = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(MalformedFrame):
        decode_event(key, value[:length])
