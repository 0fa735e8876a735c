"""The events of `__acks.<topic>`: what happened to the messages of a partition, for each of its subscriptions.

The key of a record is the subscription's id, its value one event as JSON, so that people and Spark can read it:

    orders-workers  {"type":"settled","at":1763280000000,"how":"ack","ranges":[[100,199]]}

Offsets are those of the topic's partition, ranges include both ends, and `at` is when it happened, in ms since 1970.
Leases are not in the log: they end with the lead of the broker that gave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from headrace.model.errors import MalformedFrame

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
SettledHow: TypeAlias = Literal["ack", "reject", "dead", "gap", "expired", "filtered", "discarded"]
"""Why a message will not be delivered again: worked on; refused, with dead letters off; kept as a dead letter; never
there; outlived its time or the log; does not match; failed too often, with dead letters off."""


class _Event(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=str.lower, omit_defaults=True):
    at: int


class Created(_Event, frozen=True):
    """The subscription begins here: everything below `floor` does not concern it."""

    floor: Number


class Deleted(_Event, frozen=True):
    """The subscription is no more."""


class Settled(_Event, frozen=True):
    """These messages will not be delivered again. `by_retention`: those of them that were not settled before were
    removed from the log; an audit tells them from messages that outlived their own time."""

    how: SettledHow
    ranges: Sequence[tuple[Number, Number]]
    by_retention: bool = False


class Failed(_Event, frozen=True):
    """These messages were delivered `attempts` times in vain; unless they are dying, they are due again at `due_ms`."""

    first: Number
    last: Number
    attempts: Number
    due_ms: int
    reason: str = ""
    is_dying: bool = False


class Sought(_Event, frozen=True):
    """From `floor` on everything is delivered again, whatever was settled before."""

    floor: Number


class Reconciled(_Event, frozen=True):
    """What is known of all subscriptions holds for the topic's log as the leader of `epoch` found it.

    Written when a leader epoch of the topic's partition begins: an unclean election may have put other messages at
    offsets that were settled. What was settled counts for no message of a later epoch until the next one.
    """

    epoch: Number


class SnapshotEvent(_Event, frozen=True, tag="snapshot"):
    """A part of what is known of a subscription. All parts of an `id` together replace the events before them.

    `part` counts from 1 to `parts` within the subscription; `subscriptions` is how many of them the partition had,
    each of which has its parts under this id.
    """

    id: int
    part: Number
    parts: Number
    subscriptions: Number
    floor: Number
    settled: bytes = b""
    """A slice of the 64-bit roaring bitmap of settled offsets above the floor, in the portable format."""
    failed: Sequence[tuple[Number, Number, Number, int, str, bool]] = ()
    """The fields of `Failed`, for each range."""
    epoch: int = -1
    """Of the last `Reconciled`."""


AcksEvent: TypeAlias = Created | Deleted | Settled | Failed | Sought | Reconciled | SnapshotEvent

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AcksEvent).decode


def encode_event(subscription: str, event: AcksEvent) -> tuple[bytes, bytes]:
    """The key and the value of the event's record."""
    return subscription.encode(), _encode(event)


def decode_event(key: bytes | None, value: bytes | None) -> tuple[str, AcksEvent]:
    """The subscription and the event of a record. Raises `MalformedFrame` when it is not one."""
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
