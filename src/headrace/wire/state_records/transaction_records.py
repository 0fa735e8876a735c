"""Records of `__transaction_state`, in Kafka's format, which Kafka's tools read.

- A key begins with a version (int16) that is also its type: 0 a transactional id; 1000 a bundle, which is Headrace's
  own and which Kafka's tools skip.
- A value begins with the version of its layout; a null value deletes. Both versions are read. v1 is written, because
  only this flexible layout has the previous and next producer ids and epochs of transaction protocol 2.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.codec.codec import decode_versioned, encode_versioned, version_of
from headrace.wire.codec.schema import INT8, INT16, INT32, INT64, STRING, ApiMessage, Part, array, wire

EMPTY: Final = 0
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
COMPLETE_ABORT: Final = 5
DEAD: Final = 6
PREPARE_EPOCH_FENCE: Final = 7

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
_BUNDLE_KEY_VERSION: Final = 1000
_BUNDLE_VALUE_VERSION: Final = 0


class TransactionKey(ApiMessage, versions=(0, 0)):
    transactional_id: str = wire(STRING)


class TransactionPartitions(Part):
    topic: str = wire(STRING)
    partition_ids: list[int] = array(INT32)


class TransactionValue(ApiMessage, versions=(0, 1), flexible_since=1):
    producer_id: int = wire(INT64)
    previous_producer_id: int = wire(INT64, since=1, tag=0, default=-1)
    next_producer_id: int = wire(INT64, since=1, tag=1, default=-1)
    producer_epoch: int = wire(INT16)
    next_producer_epoch: int = wire(INT16, since=1, tag=3, default=-1)
    transaction_timeout_ms: int = wire(INT32)
    transaction_status: int = wire(INT8)
    transaction_partitions: list[TransactionPartitions] | None = array(TransactionPartitions, nullable=0)
    transaction_last_update_timestamp_ms: int = wire(INT64)
    transaction_start_timestamp_ms: int = wire(INT64)
    client_transaction_version: int = wire(INT16, since=1, tag=2)


class BundleKey(ApiMessage, versions=(1000, 1000)):
    bundle: str = wire(STRING)


class StoredMember(Part):
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


class BundleValue(ApiMessage, versions=(0, 0), flexible_since=0):
    sequence: int = wire(INT64)
    members: list[StoredMember] = array(StoredMember)
    updated_ms: int = wire(INT64)
    digest: str = wire(STRING, tag=0)


def encode_transaction_key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionKey(transactional_id=transactional_id), _KEY_VERSION)


def encode_transaction_value(value: TransactionValue) -> bytes:
    return encode_versioned(value, _VALUE_VERSION)


def decode_transaction_key(data: bytes) -> str | None:
    """Return the transactional id, or None for a key of another type."""
    if version_of(data) != _KEY_VERSION:
        return None
    return decode_versioned(TransactionKey, data).transactional_id


def decode_transaction_value(data: bytes) -> TransactionValue:
    return decode_versioned(TransactionValue, data)


def encode_bundle_key(bundle: str) -> bytes:
    return encode_versioned(BundleKey(bundle=bundle), _BUNDLE_KEY_VERSION)


def encode_bundle_value(value: BundleValue) -> bytes:
    return encode_versioned(value, _BUNDLE_VALUE_VERSION)


def decode_bundle_key(data: bytes) -> str | None:
    """Return the name of the bundle, or None for a key of another type."""
    if version_of(data) != _BUNDLE_KEY_VERSION:
        return None
    return decode_versioned(BundleKey, data).bundle


def decode_bundle_value(data: bytes) -> BundleValue:
    return decode_versioned(BundleValue, data)
