"""Subscriptions and assignments of the consumer protocol type, which the coordinator of a classic group does not parse.

Each begins with its version (int16). A later version is parsed as version 3, because later versions only append fields.
v1 adds the partitions that a member owns (cooperative rebalancing), v2 their generation, v3 the rack of the member.
"""

from __future__ import annotations

from typing import Final, TypeVar

from headrace.wire.codec.codec import VERSION_BYTES, decode, encode_versioned, version_of
from headrace.wire.codec.schema import BYTES, INT32, STRING, ApiMessage, Part, array, wire

NEWEST_VERSION: Final = 3

M = TypeVar("M")


class NamedTopicPartitions(Part):
    topic: str = wire(STRING)
    partitions: list[int] = array(INT32)


class ConsumerProtocolSubscription(ApiMessage, versions=(0, 3)):
    topics: list[str] = array(STRING)
    user_data: bytes | None = wire(BYTES, nullable=0, default=None)
    owned_partitions: list[NamedTopicPartitions] = array(NamedTopicPartitions, since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(STRING, since=3, nullable=3, default=None)


class ConsumerProtocolAssignment(ApiMessage, versions=(0, 3)):
    assigned_partitions: list[NamedTopicPartitions] = array(NamedTopicPartitions)
    user_data: bytes | None = wire(BYTES, nullable=0, default=None)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = NEWEST_VERSION) -> bytes:
    return encode_versioned(subscription, version)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, data)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION) -> bytes:
    return encode_versioned(assignment, version)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    return _decode(ConsumerProtocolAssignment, data)


def _decode(cls: type[M], data: bytes) -> M:
    return decode(cls, min(version_of(data), NEWEST_VERSION), memoryview(data), VERSION_BYTES)
