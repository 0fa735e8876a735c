"""Records of share groups have the bytes of Kafka 4.3."""

from __future__ import annotations

import pytest

from headrace.model.errors import MalformedFrame
from headrace.wire.state_records import share_group_records as records

PAIRS = [
    (
        records.ShareGroupMetadataKey(group_id="gdd1df1"),
        "000b 0007 67646431646631",
        records.ShareGroupMetadataValue(epoch=2, metadata_hash=-2558145472485199384),
        "0000 00000002 dc7fa43f14bef1e8 00",
    ),
    (
        records.ShareGroupMemberMetadataKey(group_id="gdd1df1", member_id="m"),
        "000a 0007 67646431646631 0001 6d",
        records.ShareGroupMemberMetadataValue(
            rack_id=None, client_id="test", client_host="/127.0.0.1", subscribed_topic_names=["tdd1df1"]
        ),
        "0000 00 05 74657374 0b 2f3132372e302e302e31 02 08 74646431646631 00",
    ),
]


@pytest.mark.parametrize(("key", "key_bytes", "value", "value_bytes"), PAIRS, ids=lambda one: type(one).__name__)
def test_keys_and_values_have_the_bytes_of_kafka(
    key: records.ShareGroupKey, key_bytes: str, value: object, value_bytes: str
) -> None:
    assert records.encode_share_group_key(key) == bytes.fromhex(key_bytes)
    assert records.encode_share_group_value(value) == bytes.fromhex(value_bytes)
    assert records.decode_share_group_key(bytes.fromhex(key_bytes)) == key
    assert records.decode_share_group_value(key, bytes.fromhex(value_bytes)) == value


@pytest.mark.parametrize("kind", [0, 3, 12, 13, 14, 15, 16])
def test_keys_of_other_types_are_ignored(kind: int) -> None:
    assert records.decode_share_group_key(kind.to_bytes(2, "big") + b"\0\1g") is None


@pytest.mark.parametrize(("key", "key_bytes", "value", "value_bytes"), PAIRS, ids=lambda one: type(one).__name__)
def test_every_truncation_is_a_typed_error(
    key: records.ShareGroupKey, key_bytes: str, value: object, value_bytes: str
) -> None:
    for whole, read in (
        (bytes.fromhex(key_bytes), records.decode_share_group_key),
        (bytes.fromhex(value_bytes), lambda data: records.decode_share_group_value(key, data)),
    ):
        for size in range(len(whole)):
            with pytest.raises(MalformedFrame):
                read(whole[:size])
