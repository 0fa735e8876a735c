"""Events of delayed logs survive a round trip; a scan finds the same messages as a full read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRecord
from headrace.model.message_headers import DELAY, DELIVER_AT, REPEAT
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records
from headrace.wire.batches.compression import GZIP, NONE
from headrace.wire.codec.codec import decode, encode
from headrace.wire.messages.delays import (
    AlterDelayedRequest,
    DelayedChange,
    DelayedHeader,
    DelayedMessage,
    ListDelayedResponse,
)
from headrace.wire.state_records.delayed_records import (
    EVENT,
    Cancelled,
    DelayedEvent,
    Dropped,
    Released,
    Releasing,
    Rescheduled,
    build_event,
    is_event,
    read_event,
    read_records_at,
    scan_waiting,
)

EVENTS: list[DelayedEvent] = [
    Releasing(1, 2, 3, 4, [5, 6], [(6, 7)], 8),
    Released(1, 2),
    Cancelled(1, [2, 3]),
    Rescheduled(1, 2, 3),
    Dropped(1, [2], "no key"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_round_trip(event: DelayedEvent) -> None:
    batch = build_event(event)
    header = parse_header(batch)
    assert is_event(header)
    assert read_event(memoryview(batch), header) == event
    (record,) = read_records(memoryview(batch), header, 1 << 20)
    decoded = json.loads(record.value or b"")
    kind = type(event).__name__.lower()
    assert next(iter(decoded.items())) == ("type", kind)
    assert record.key == f"headrace:{kind}".encode()
    assert (dict(record.headers), record.timestamp_ms) == ({EVENT: kind.encode()}, 1)


def test_a_batch_that_is_not_an_event_is_rejected() -> None:
    for value in (b"", b"{}", b'{"type":"novel","at":1}', b'{"type":"released","at":"x","done":1}'):
        batch = build_batch([BatchRecord(value=value)], base_sequence=-2)
        with pytest.raises(InvalidRecord):
            read_event(memoryview(batch), parse_header(batch))
    assert not is_event(parse_header(build_batch([BatchRecord(value=b"x")])))
    assert not is_event(parse_header(build_batch([BatchRecord(value=b"x")], producer_id=1, base_sequence=0)))


names = st.sampled_from([DELIVER_AT, DELAY, REPEAT, EVENT, "headrace-", "x", ""])
contents = st.one_of(st.none(), st.binary(max_size=200))
records = st.builds(
    BatchRecord,
    key=contents,
    value=contents,
    headers=st.lists(st.tuples(names, contents), max_size=70),
    timestamp_ms=st.integers(0, 2**45),
)


@given(st.lists(records, min_size=1, max_size=5), st.sampled_from([NONE, GZIP]), st.integers(0, 2**50))
def test_a_scan_finds_the_same_messages_as_a_full_read(
    many: list[BatchRecord], compression: int, base_offset: int
) -> None:
    batch = build_batch(many, compression=compression, base_offset=base_offset)
    header = parse_header(batch)
    expected = []
    for record in read_records(memoryview(batch), header, 1 << 24):
        found: dict[str, Any] = {name: b"" if value is None else value for name, value in record.headers}
        if EVENT not in found:
            expected.append((record.offset, record.timestamp_ms, *(found.get(n) for n in (DELIVER_AT, DELAY, REPEAT))))
    assert list(scan_waiting(memoryview(batch), header, 1 << 24)) == expected


@given(st.lists(records, min_size=1, max_size=9), st.sampled_from([NONE, GZIP]), st.data())
def test_records_can_be_read_by_their_offsets(many: list[BatchRecord], compression: int, data: st.DataObject) -> None:
    gap = data.draw(st.booleans())
    if gap:
        for number, record in enumerate(many):
            record.offset = 100 + 2 * number
    batch = memoryview(build_batch(many, compression=compression, base_offset=100))
    header = parse_header(batch)
    found = {record.offset: record for record in read_records(batch, header, 1 << 24)}
    wanted = data.draw(st.lists(st.sampled_from(sorted(found)), unique=True, min_size=1))
    assert list(read_records_at(batch, header, wanted, 1 << 24)) == [found[offset] for offset in sorted(wanted)]


@given(st.data())
def test_a_truncated_batch_is_rejected(data: st.DataObject) -> None:
    batch = build_batch([BatchRecord(key=b"k", value=b"v" * 10, headers=[(DELAY, b"10s")]) for _ in range(3)])
    header = parse_header(batch)
    end = data.draw(st.integers(61, len(batch) - 1))
    with pytest.raises(InvalidRecord):
        list(scan_waiting(memoryview(batch)[:end], header, 1 << 20))
    with pytest.raises(InvalidRecord):
        list(read_records_at(memoryview(batch)[:end], header, [2], 1 << 20))


def test_requests_for_delayed_messages_survive_a_round_trip() -> None:
    message = DelayedMessage(offset=1, due_ms=2, key=None, value=b"v", headers=[DelayedHeader("h", None)])
    listed = ListDelayedResponse(waiting=2, messages=[message])
    request = AlterDelayedRequest(topic="t", partition=1, changes=[DelayedChange(offset=3, due_ms=-1)])
    for one in (listed, request):
        data = b"".join(bytes(chunk) for chunk in encode(one, 0))  # type: ignore[call-overload]
        assert decode(type(one), 0, memoryview(data)) == one
