"""The events of the acks log `__acks.<topic>`: the settlements and failures of a partition, for each subscription.

The key of a record is the name of the subscription. Its value is one event as JSON, so that people and Spark can read
it:

    orders-workers  {"type":"settled","at":1763280000000,"how":"ack","ranges":[[100,199]]}

Offsets are those of the partition of the topic, ranges are inclusive, and `at` is the time of the event in ms since
1970. Leases are not logged: they end with the leadership of the broker that granted them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from headrace.model.errors import MalformedFrame

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
SettledHow: TypeAlias = Literal["ack", "reject", "dead", "gap", "expired", "filtered", "discarded"]
"""Why a message is not delivered again: acked; rejected, with dead letters disabled; written as a dead letter; no
record at the offset; expired or deleted by retention; not matching the filter; attempts exhausted, with dead letters
disabled."""


class _Event(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=str.lower, omit_defaults=True):
    at: int


class Created(_Event, frozen=True):
    """The subscription was created, and begins at `floor`."""

    floor: Number


class Deleted(_Event, frozen=True):
    """The subscription was deleted."""


class Settled(_Event, frozen=True):
    """Messages that are not delivered again. `by_retention` means that retention removed the unsettled ones of them
    from the log, so that an audit can distinguish them from messages whose own time to live has expired."""

    how: SettledHow
    ranges: Sequence[tuple[Number, Number]]
    by_retention: bool = False


class Failed(_Event, frozen=True):
    """Messages that have failed `attempts` deliveries. Unless `is_dying`, they are delivered again at `due_ms`."""

    first: Number
    last: Number
    attempts: Number
    due_ms: int
    reason: str = ""
    is_dying: bool = False


class Sought(_Event, frozen=True):
    """A seek: all messages from `floor` on are delivered again, including settled ones."""

    floor: Number


class Redriven(_Event, frozen=True):
    """Settled messages that are delivered again, without failed attempts. Each is an offset, and how many times the
    message has been redriven."""

    messages: Sequence[tuple[Number, Number]]


class Reconciled(_Event, frozen=True):
    """The state of all subscriptions applies to the log of the topic at the beginning of leader epoch `epoch`.

    Written when a leader epoch of the topic's partition begins, because an unclean election may have put other messages
    at settled offsets. Settlements do not apply to messages of a later epoch until the next such event.
    """

    epoch: Number


class SnapshotEvent(_Event, frozen=True, tag="snapshot"):
    """A part of the state of a subscription. All parts of one `id` together replace the events before them.

    `part` counts from 1 to `parts` within the subscription. `subscriptions` is the number of subscriptions in the
    snapshot; each has its parts under the same id.
    """

    id: int
    part: Number
    parts: Number
    subscriptions: Number
    floor: Number
    settled: bytes = b""
    """A slice of the 64-bit roaring bitmap of the settled offsets above the ack floor, in the portable format."""
    failed: Sequence[tuple[Number, Number, Number, int, str, bool]] = ()
    """The fields of `Failed` for each range."""
    redriven: Sequence[tuple[Number, Number]] = ()
    """The messages that were redriven, as in `Redriven`; they may be settled again."""
    epoch: int = -1
    """The epoch of the last `Reconciled`."""


AcksEvent: TypeAlias = Created | Deleted | Settled | Failed | Sought | Redriven | Reconciled | SnapshotEvent

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AcksEvent).decode


def encode_event(subscription: str, event: AcksEvent) -> tuple[bytes, bytes]:
    """Return the key and the value of the record."""
    return subscription.encode(), _encode(event)


def decode_event(key: bytes | None, value: bytes | None) -> tuple[str, AcksEvent]:
    """Return the subscription and the event of a record; raise `MalformedFrame` if it is not an event."""
    if not key or value is None:
        raise MalformedFrame("a record of an acks log must have a key and a value")
    try:
        subscription, event = key.decode(), _decode(value)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise MalformedFrame(f"a record of an acks log is not an event: {error}") from None
    if not all(first <= last for first, last in _ranges_of(event)):
        raise MalformedFrame(f"an event of subscription {subscription} has a range that ends before it begins")
    return subscription, event


def _ranges_of(event: AcksEvent) -> Iterable[tuple[int, int]]:
    match event:
        case Settled():
            return event.ranges
        case Failed():
            return ((event.first, event.last),)
        case SnapshotEvent():
            return ((first, last) for first, last, *_ in event.failed)
        case _:
            return ()
