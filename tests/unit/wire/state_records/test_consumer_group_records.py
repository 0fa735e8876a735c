"""Records of groups of the consumer protocol have the bytes of Kafka."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.state_records import consumer_group_records as records

TOPIC = UUID("00000000-0000-0000-0000-000000000001")
PAIRS = [
    (
        records.ConsumerGroupMetadataKey(group_id="g"),
        "0003 0001 67",
        records.ConsumerGroupMetadataValue(epoch=7, metadata_hash=1),
        "0000 00000007 01 00 08 0000000000000001",
    ),
    (
        records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        "0005 0001 67 0001 6d",
        records.ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id="r",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex="",
            rebalance_timeout_ms=300_000,
            server_assignor="range",
        ),
        "0000 00 02 72 02 63 03 2f68 02 02 74 01 000493e0 06 72616e6765 00",
    ),
    (
        records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="classic"),
        "0005 0001 67 0007 636c6173736963",
        records.ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            rebalance_timeout_ms=300_000,
            classic_member_metadata=records.ClassicMemberMetadata(
                session_timeout_ms=45_000,
                supported_protocols=[records.ClassicProtocol(name="range", metadata=b"\x01\x02")],
            ),
        ),
        "0000 00 00 02 63 03 2f68 02 02 74 00 000493e0 00 01 00 11 01 0000afc8 02 06 72616e6765 03 0102 00 00",
    ),
    (
        records.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        "0006 0001 67",
        records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=7),
        "0000 00000007 00",
    ),
    (
        records.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        "0007 0001 67 0001 6d",
        records.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[records.TargetPartitions(topic_id=TOPIC, partitions=[2])]
        ),
        "0000 02 00000000000000000000000000000001 02 00000002 00 00",
    ),
    (
        records.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        "0008 0001 67 0001 6d",
        records.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=7,
            previous_member_epoch=6,
            state=1,
            assigned_partitions=[
                records.HeldPartitions(topic_id=TOPIC, partitions=[2], assignment_epochs=[5]),
                records.HeldPartitions(topic_id=TOPIC, partitions=[3]),
            ],
        ),
        (
            "0000 00000007 00000006 01 03"
            "00000000000000000000000000000001 02 00000002 01 00 05 02 00000005"
            "00000000000000000000000000000001 02 00000003 00 01 00"
        ),
    ),
    (
        records.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t.*"),
        "0010 0001 67 0003 742e2a",
        records.ConsumerGroupRegularExpressionValue(topics=["t1"], version=2, timestamp=1000),
        "0000 02 03 7431 0000000000000002 00000000000003e8 00",
    ),
]


@pytest.mark.parametrize(("key", "key_bytes", "value", "value_bytes"), PAIRS)
def test_keys_and_values_have_the_bytes_of_kafka(
    key: records.ConsumerGroupKey, key_bytes: str, value: object, value_bytes: str
) -> None:
    assert records.encode_consumer_group_key(key) == bytes.fromhex(key_bytes)
    assert records.encode_consumer_group_value(value) == bytes.fromhex(value_bytes)
    assert records.decode_consumer_group_key(bytes.fromhex(key_bytes)) == key
    assert records.decode_consumer_group_value(key, bytes.fromhex(value_bytes)) == value


@pytest.mark.parametrize("kind", [0, 1, 2, 4, 9, 17])
def test_keys_of_other_types_are_ignored(kind: int) -> None:
    assert records.decode_consumer_group_key(kind.to_bytes(2, "big") + b"anything") is None


@given(st.sampled_from([key for key, *_ in PAIRS]), st.binary(max_size=80))
def test_a_malformed_value_is_a_typed_error(key: records.ConsumerGroupKey, data: bytes) -> None:
    for value in (data, b"\0\0" + data):
        try:
            records.decode_consumer_group_value(key, value)
        except MalformedFrame:
            continue
