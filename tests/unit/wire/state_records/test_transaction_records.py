"""Records of the transaction coordinator have the bytes of Kafka."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.codec import encode_bytes
from headrace.wire.state_records import transaction_records as records
from headrace.wire.state_records.transaction_records import TransactionPartitions, TransactionValue

ONGOING = TransactionValue(
    producer_id=5,
    producer_epoch=2,
    transaction_timeout_ms=60_000,
    transaction_status=records.ONGOING,
    transaction_partitions=[TransactionPartitions(topic="t", partition_ids=[0, 3])],
    transaction_last_update_timestamp_ms=1001,
    transaction_start_timestamp_ms=1000,
)

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.builds(
    TransactionValue,
    producer_id=INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    producer_epoch=INT16,
    next_producer_epoch=INT16,
    transaction_timeout_ms=st.integers(0, (1 << 31) - 1),
    transaction_status=st.integers(records.EMPTY, records.PREPARE_EPOCH_FENCE),
    transaction_partitions=st.none()
    | st.lists(
        st.builds(
            TransactionPartitions,
            topic=st.text("abcä", max_size=5),
            partition_ids=st.lists(st.integers(0, 1000), max_size=4),
        ),
        max_size=3,
    ),
    transaction_last_update_timestamp_ms=INT64,
    transaction_start_timestamp_ms=INT64,
    client_transaction_version=INT16,
)


def test_a_key_has_the_bytes_of_kafka() -> None:
    key = records.encode_transaction_key("tx")
    assert key.hex(" ") == "00 00 00 02 74 78"
    assert records.decode_transaction_key(key) == "tx"


def test_the_key_of_a_bundle_has_a_type_that_kafka_ignores() -> None:
    key = records.encode_bundle_key("tx")
    assert key.hex(" ") == "03 e8 00 02 74 78"
    assert records.decode_bundle_key(key) == "tx"
    assert records.decode_transaction_key(key) is None
    assert records.decode_bundle_key(records.encode_transaction_key("tx")) is None


@given(st.binary(max_size=40), st.integers(0, 80))
def test_a_truncated_or_altered_bundle_is_a_typed_error(noise: bytes, length: int) -> None:
    value = records.BundleValue(sequence=3, members=[records.StoredMember("a", 1, 2)], updated_ms=4)
    data = records.encode_bundle_value(value)
    assert records.decode_bundle_value(data) == value
    for broken in (data[: min(length, len(data) - 1)], data[:length] + noise, noise):
        with suppress(MalformedFrame):
            records.decode_bundle_value(broken)
        with suppress(MalformedFrame):
            records.decode_bundle_key(broken)


def test_a_value_has_the_bytes_of_kafka() -> None:
    data = records.encode_transaction_value(ONGOING)
    assert data == bytes.fromhex(
        "0001 0000000000000005 0002 0000ea60 01 02 02 74 03 00000000 00000003 0000000000000003e9 00000000000003e8 00"
    )
    assert records.decode_transaction_value(data) == ONGOING


def test_a_record_of_kafka_4_3_survives_a_round_trip() -> None:
    data = bytes.fromhex(
        "0001 0000000000000000 0001 0000ea60 03 02 07 6f7264657273 03 00000000 00000001 00"
        "000001a1e245fa83 000001a1e245dae3 02 00 08 0000000000000000 02 02 0002"
    )
    value = records.decode_transaction_value(data)
    assert (value.transaction_status, value.previous_producer_id) == (records.PREPARE_ABORT, 0)
    assert value.transaction_partitions == [TransactionPartitions(topic="orders", partition_ids=[0, 1])]
    assert records.encode_transaction_value(value) == data


def test_next_and_previous_producer_ids_are_tagged_and_optional() -> None:
    moving = TransactionValue(
        previous_producer_id=1, next_producer_id=2, next_producer_epoch=3, client_transaction_version=2
    )
    tags = bytes.fromhex("04 00 08 0000000000000001 01 08 0000000000000002 02 02 0002 03 02 0003")
    assert records.encode_transaction_value(moving).endswith(tags)
    assert records.decode_transaction_value(records.encode_transaction_value(moving)) == moving


def test_an_empty_transaction_has_null_partitions() -> None:
    empty = TransactionValue(producer_id=5, transaction_partitions=None)
    assert records.decode_transaction_value(records.encode_transaction_value(empty)) == empty


def test_version_0_is_read() -> None:
    data = b"\0\0" + encode_bytes(ONGOING, 0)
    assert data == bytes.fromhex(
        "0000 0000000000000005 0002 0000ea60 01 00000001 0001 74 00000002 00000000 00000003"
        "00000000000003e9 00000000000003e8"
    )
    assert records.decode_transaction_value(data) == ONGOING


@given(VALUES)
def test_every_value_survives_a_round_trip(value: TransactionValue) -> None:
    assert records.decode_transaction_value(records.encode_transaction_value(value)) == value


def test_keys_of_other_types_are_ignored() -> None:
    assert records.decode_transaction_key(b"\0\1anything") is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0", b"\0\0\0\x09abc", b"\0\0\xff\xff"])
def test_a_malformed_key_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        records.decode_transaction_key(data)


def test_an_unknown_value_version_is_a_typed_error() -> None:
    with pytest.raises(MalformedFrame, match="TransactionValue v2 is not supported"):
        records.decode_transaction_value(b"\0\2" + bytes(60))


@given(VALUES, st.data())
def test_a_truncated_or_changed_value_decodes_or_raises_a_typed_error(
    value: TransactionValue, data: st.DataObject
) -> None:
    stored = bytearray(records.encode_transaction_value(value))
    for length in range(len(stored)):
        with pytest.raises(MalformedFrame):
            records.decode_transaction_value(bytes(stored[:length]))
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedFrame):
        records.decode_transaction_value(bytes(stored))


@given(st.binary(max_size=80))
def test_garbage_is_a_typed_error(data: bytes) -> None:
    for decode in (records.decode_transaction_key, records.decode_transaction_value):
        with suppress(MalformedFrame):
            decode(data)
