"""What members of a consumer group tell each other through the coordinator, which does not look into it.

A version (i16) stands before each. A version above ours is read as the newest we know: newer ones only
append. v1 names the partitions that a member holds (cooperative rebalancing), v2 the generation it got them
in, v3 the member's rack.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.codec import decode, encode_bytes
from headrace.wire.codec.schema import BYTES, INT32, STRING, array, message, part, wire

NEWEST_VERSION: Final = 3

M = TypeVar("M")
_VERSION: Final = Struct(">h")


@part
class NamedTopicPartitions:
    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 3))
class ConsumerProtocolSubscription:
    topics: list[str] = wire(array(STRING))
    user_data: bytes | None = wire(BYTES, nullable=0, default=None)
    owned_partitions: list[NamedTopicPartitions] = wire(array(NamedTopicPartitions), since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(STRING, since=3, nullable=3, default=None)


@message(versions=(0, 3))
class ConsumerProtocolAssignment:
    assigned_partitions: list[NamedTopicPartitions] = wire(array(NamedTopicPartitions))
    user_data: bytes | None = wire(BYTES, nullable=0, default=None)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = NEWEST_VERSION) -> bytes:
    return _VERSION.pack(version) + encode_bytes(subscription, version)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, data)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION) -> bytes:
    return _VERSION.pack(version) + encode_bytes(assignment, version)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    return _decode(ConsumerProtocolAssignment, data)


def version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedFrame("a message of the consumer protocol without a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedFrame(f"a message of the consumer protocol of version {version}")
    return version


def _decode(cls: type[M], data: bytes) -> M:
    return decode(cls, min(version_of(data), NEWEST_VERSION), memoryview(data), _VERSION.size)
