"""Subscriptions and assignments of group members, and the coordinator's records of offsets and classic groups."""

from __future__ import annotations

import importlib
import io
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_writer
from tests.unit.wire.codec.oracle import assert_same, random_message

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.codec import encode_bytes
from headrace.wire.state_records import consumer_protocol as protocol
from headrace.wire.state_records import offsets_records as offsets


def kio_data(name: str, version: int, random: Random) -> tuple[Any, bytes]:
    module = importlib.import_module(f"kio.schema.{name}.v{version}.data")
    cls: Any = getattr(module, "".join(word.capitalize() for word in name.split("_")))
    message = random_message(cls, random)
    buffer = io.BytesIO()
    entity_writer(cls)(buffer, message)
    return message, version.to_bytes(2, "big") + buffer.getvalue()


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_and_assignments_agree_with_kio(version: int) -> None:
    random = Random(version)
    for _ in range(30):
        theirs, data = kio_data("consumer_protocol_subscription", version, random)
        subscription = protocol.decode_subscription(data)
        assert_same(subscription, theirs)
        assert protocol.encode_subscription(subscription, version) == data
        theirs, data = kio_data("consumer_protocol_assignment", version, random)
        assignment = protocol.decode_assignment(data)
        assert_same(assignment, theirs)
        assert protocol.encode_assignment(assignment, version) == data


def test_a_later_subscription_version_is_read_as_version_3() -> None:
    subscription = protocol.ConsumerProtocolSubscription(topics=["t"], generation_id=4, rack_id="r")
    data = protocol.encode_subscription(subscription)
    assert protocol.decode_subscription(b"\0\x09" + data[2:] + b"more") == subscription


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0", b"\0\0\0\0\0\7"])
def test_a_malformed_subscription_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        protocol.decode_subscription(data)


def test_an_offset_record_has_the_bytes_of_kafka() -> None:
    key = offsets.encode_offset_key("g", "t", 5)
    assert key.hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 05"
    value = offsets.OffsetCommitValue(offset=42, leader_epoch=3, metadata="m", commit_timestamp=1000)
    data = offsets.encode_offset_value(value)
    assert data == bytes.fromhex("0004 000000000000002a 00000003 02 6d 00000000000003e8 00")
    assert offsets.decode_key(key) == offsets.OffsetCommitKey(group="g", topic="t", partition=5)
    assert offsets.decode_offset_value(data) == value


def test_a_group_record_has_the_bytes_of_kafka() -> None:
    key = offsets.encode_group_key("g")
    assert key.hex(" ") == "00 02 00 01 67"
    member = offsets.GroupMemberMetadata(
        member_id="m",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=300_000,
        session_timeout_ms=45_000,
        subscription=b"s",
        assignment=b"a",
    )
    value = offsets.GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        current_state_timestamp=1000,
        members=[member],
    )
    data = offsets.encode_group_value(value)
    assert data == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000007 0005 72616e6765 0001 6d 00000000000003e8 00000001"
        "0001 6d ffff 0001 63 0002 2f68 000493e0 0000afc8 00000001 73 00000001 61"
    )
    assert offsets.decode_key(key) == offsets.GroupMetadataKey(group="g")
    assert offsets.decode_group_value(data) == value


def test_all_value_versions_are_read() -> None:
    value = offsets.OffsetCommitValue(
        offset=1, leader_epoch=2, metadata="m", commit_timestamp=3, expire_timestamp=4, topic_id=UUID(int=5)
    )
    for version in range(5):
        read = offsets.decode_offset_value(version.to_bytes(2, "big") + encode_bytes(value, version))
        assert (read.offset, read.metadata, read.commit_timestamp) == (1, "m", 3)
        assert read.leader_epoch == (2 if version >= 3 else -1)
        assert read.expire_timestamp == (4 if version == 1 else -1)
        assert read.topic_id == (value.topic_id if version >= 4 else UUID(int=0))
    group = offsets.GroupMetadataValue(protocol_type="consumer", members=[offsets.GroupMemberMetadata(member_id="m")])
    for version in range(5):
        assert offsets.decode_group_value(version.to_bytes(2, "big") + encode_bytes(group, version)) == group


def test_keys_of_other_types_are_ignored_and_malformed_ones_are_typed_errors() -> None:
    assert offsets.decode_key(b"\0\3anything") is None
    for data in (b"", b"\0", b"\xff\xff", b"\0\1\0\x09abc", b"\0\2"):
        with pytest.raises(MalformedFrame):
            offsets.decode_key(data)
    with pytest.raises(MalformedFrame):
        offsets.decode_offset_value(b"\0\5" + bytes(40))
