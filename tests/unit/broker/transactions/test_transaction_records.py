"""The state of a transaction is restored unchanged from its records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.transactions.transaction_records import (
    joint_commit_record,
    joint_commit_tombstone,
    partitions_by_topic,
    read_joint_commit,
    read_transaction,
    tombstone,
    transaction_record,
)
from headrace.machines.transactions.joint_commits import JointCommit, JointCommitMember
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TransactionMetadata, TransactionStatus
from headrace.model.errors import MalformedFrame
from headrace.wire.state_records.transaction_records import (
    DEAD,
    PREPARE_COMMIT,
    TransactionValue,
    decode_bundle_key,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_value,
)

numbers = st.integers(-1, 2**63 - 1)
epochs = st.integers(0, 2**15 - 1)
partitions = st.frozensets(st.tuples(st.sampled_from(["a", "b", "ü"]), st.integers(0, 2**31 - 1)), max_size=5)


@given(
    st.builds(
        TransactionMetadata,
        st.text(),
        st.builds(ProducerIdAndEpoch, numbers, epochs),
        st.integers(0, 2**31 - 1),
        numbers,
        st.sampled_from([*TransactionStatus][1:]),
        partitions,
        numbers,
        numbers,
        numbers,
    )
)
def test_a_transaction_record_round_trips(transaction: TransactionMetadata) -> None:
    key, value = transaction_record(transaction)
    assert value is not None
    transactional_id = decode_transaction_key(key)
    assert transactional_id == transaction.transactional_id
    assert read_transaction(transactional_id, value) == transaction


def test_an_empty_transaction_record_has_null_partitions_as_in_kafka() -> None:
    transaction = TransactionMetadata("x", ProducerIdAndEpoch(1, 2), 3, 4)
    _, value = transaction_record(transaction)
    assert value is not None
    assert decode_transaction_value(value).transaction_partitions is None
    assert read_transaction("x", value) == transaction


def test_the_states_have_kafkas_numbers() -> None:
    _, value = transaction_record(
        TransactionMetadata("x", ProducerIdAndEpoch(1, 2), 3, 4, TransactionStatus.PREPARE_COMMIT)
    )
    assert value is not None
    assert decode_transaction_value(value).transaction_status == PREPARE_COMMIT == 2


def test_a_state_that_is_never_written_is_rejected() -> None:
    value = TransactionValue(
        producer_id=1,
        producer_epoch=2,
        transaction_timeout_ms=3,
        transaction_status=DEAD,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=4,
        transaction_start_timestamp_ms=5,
    )
    with pytest.raises(MalformedFrame):
        read_transaction("x", encode_transaction_value(value))


def test_a_tombstone_has_the_key_of_its_id() -> None:
    assert tombstone("x") == (transaction_record(TransactionMetadata("x", ProducerIdAndEpoch(1, 2), 3, 4))[0], None)


def test_partitions_are_written_in_order() -> None:
    assert list(partitions_by_topic(frozenset([("b", 1), ("a", 2), ("a", 1)])).items()) == [("a", [1, 2]), ("b", [1])]


members = st.lists(st.builds(JointCommitMember, st.text(), numbers, epochs), max_size=4).map(
    lambda found: tuple(sorted(found))
)


@given(st.builds(JointCommit, st.text(), st.integers(0, 2**63 - 1), members, numbers))
def test_a_bundle_record_round_trips(bundle: JointCommit) -> None:
    key, value = joint_commit_record(bundle)
    assert value is not None
    assert decode_transaction_key(key) is None
    name = decode_bundle_key(key)
    assert name == bundle.name
    assert read_joint_commit(name, value) == bundle
    assert joint_commit_tombstone(name) == (key, None)
