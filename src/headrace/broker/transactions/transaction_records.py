"""Conversion between the coordinator's transactions and the records of `__transaction_state`."""

from __future__ import annotations

from headrace.broker.coordination.state_log import KeyValue
from headrace.machines.transactions.joint_commits import JointCommit, JointCommitMember
from headrace.machines.transactions.transaction_state import (
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.model.errors import MalformedFrame
from headrace.wire.state_records import transaction_records as records

_NUMBERS = {
    TransactionStatus.EMPTY: records.EMPTY,
    TransactionStatus.ONGOING: records.ONGOING,
    TransactionStatus.PREPARE_COMMIT: records.PREPARE_COMMIT,
    TransactionStatus.PREPARE_ABORT: records.PREPARE_ABORT,
    TransactionStatus.COMPLETE_COMMIT: records.COMPLETE_COMMIT,
    TransactionStatus.COMPLETE_ABORT: records.COMPLETE_ABORT,
}
_STATUSES = {number: status for status, number in _NUMBERS.items()}


def transaction_record(transaction: TransactionMetadata) -> KeyValue:
    """A record is the whole state of one transactional id; the last record wins."""
    partitions = None
    if transaction.status is not TransactionStatus.EMPTY:
        partitions = [
            records.TransactionPartitions(topic=topic, partition_ids=indexes)
            for topic, indexes in partitions_by_topic(transaction.partitions).items()
        ]
    value = records.TransactionValue(
        producer_id=transaction.producer.id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=_NUMBERS[transaction.status],
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    return records.encode_transaction_key(transaction.transactional_id), records.encode_transaction_value(value)


def tombstone(transactional_id: str) -> KeyValue:
    return records.encode_transaction_key(transactional_id), None


def read_transaction(transactional_id: str, data: bytes) -> TransactionMetadata:
    """Raise `MalformedFrame` for a state that this coordinator cannot have written."""
    value = records.decode_transaction_value(data)
    status = _STATUSES.get(value.transaction_status)
    if status is None:
        raise MalformedFrame(f"the transaction of {transactional_id} has an unknown state {value.transaction_status}")
    return TransactionMetadata(
        transactional_id,
        ProducerIdAndEpoch(value.producer_id, value.producer_epoch),
        value.transaction_timeout_ms,
        value.transaction_last_update_timestamp_ms,
        status,
        frozenset(
            (named.topic, index) for named in value.transaction_partitions or () for index in named.partition_ids
        ),
        value.transaction_start_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
    )


def joint_commit_record(bundle: JointCommit) -> KeyValue:
    value = records.BundleValue(
        sequence=bundle.sequence,
        members=[
            records.StoredMember(member.transactional_id, member.producer_id, member.epoch) for member in bundle.members
        ],
        updated_ms=bundle.updated_ms,
        digest=bundle.digest,
    )
    return records.encode_bundle_key(bundle.name), records.encode_bundle_value(value)


def joint_commit_tombstone(name: str) -> KeyValue:
    return records.encode_bundle_key(name), None


def read_joint_commit(name: str, data: bytes) -> JointCommit:
    value = records.decode_bundle_value(data)
    members = (
        JointCommitMember(member.transactional_id, member.producer_id, member.producer_epoch)
        for member in value.members
    )
    return JointCommit(name, value.sequence, tuple(sorted(members)), value.updated_ms, value.digest)


def partitions_by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Return the sorted partition numbers by topic. A set has another order in every run."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics
