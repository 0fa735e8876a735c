"""The requests of transactional producers, and their errors in each version of the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import (
    ID,
    NEWER,
    OLDER,
    Transactor,
    described,
    partition_contents,
    state,
)

from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidGroupId,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NotCoordinator,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from headrace.model.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
)


async def ready(simulated_broker: SimulatedBroker, generation: int = OLDER) -> Transactor:
    await simulated_broker.create_topic("t", 2)
    producer = Transactor(simulated_broker, generation=generation)
    assert await producer.init() == 0
    return producer


async def fenced(simulated_broker: SimulatedBroker) -> Transactor:
    """A producer whose transactional id another producer has taken over."""
    producer = await ready(simulated_broker)
    assert await Transactor(simulated_broker).init() == 0
    return producer


# InitProducerId


async def init(simulated_broker: SimulatedBroker, version: int = 4, **fields: Any) -> tuple[int, int, int]:
    response = await simulated_broker.send(InitProducerIdRequest(**fields), version)
    return response.error_code, response.producer_id, response.producer_epoch


@pytest.mark.parametrize("version", [0, 5])
async def test_a_producer_without_transactions_gets_a_new_producer_id(
    simulated_broker: SimulatedBroker, version: int
) -> None:
    responses = [await init(simulated_broker, version) for _ in range(3)]
    assert [(code, epoch) for code, _, epoch in responses] == [(0, 0)] * 3
    assert len({producer_id for _, producer_id, _ in responses}) == 3
    assert simulated_broker.broker.catalogue.find(TRANSACTION_STATE) is None, "it is not needed yet"


async def test_inconsistent_requests_are_rejected(simulated_broker: SimulatedBroker) -> None:
    assert await init(simulated_broker, transactional_id="", transaction_timeout_ms=1) == (InvalidRequest.code, -1, -1)
    assert await init(simulated_broker, producer_id=1) == (InvalidRequest.code, -1, -1)
    assert await init(simulated_broker, producer_epoch=1) == (InvalidRequest.code, -1, -1)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
async def test_a_timeout_out_of_bounds_is_rejected(simulated_broker: SimulatedBroker, timeout_ms: int) -> None:
    assert await init(simulated_broker, transactional_id=ID, transaction_timeout_ms=timeout_ms) == (
        InvalidTransactionTimeout.code,
        -1,
        -1,
    )
    assert (await described(simulated_broker)).error_code == TransactionalIdNotFound.code


@pytest.mark.parametrize(("version", "error"), [(3, InvalidProducerEpoch), (4, ProducerFenced), (5, ProducerFenced)])
async def test_a_fenced_producer_gets_the_error_of_its_version(
    simulated_broker: SimulatedBroker, version: int, error: type[HeadraceError]
) -> None:
    producer = await fenced(simulated_broker)
    assert await producer.init(claims=True, version=version) == error.code


async def test_new_producers_are_accepted_while_the_registry_is_unavailable(simulated_broker: SimulatedBroker) -> None:
    given = [await init(simulated_broker)]
    simulated_broker.registry.unavailable = True
    given += [await init(simulated_broker) for _ in range(5000)]
    assert {error for error, _, _ in given} == {0}
    assert len({producer_id for _, producer_id, _ in given}) == len(given)


async def test_without_a_reserve_an_unavailable_registry_gives_coordinator_not_available(
    simulated_broker: SimulatedBroker,
) -> None:
    simulated_broker.registry.unavailable = True
    assert await init(simulated_broker) == (CoordinatorNotAvailable.code, -1, -1)
    assert await init(simulated_broker, transactional_id=ID, transaction_timeout_ms=1_000) == (
        CoordinatorNotAvailable.code,
        -1,
        -1,
    )
    simulated_broker.registry.unavailable = False
    assert (await init(simulated_broker, transactional_id=ID, transaction_timeout_ms=1_000))[0] == 0


# AddPartitionsToTxn


def codes(results: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in results
        for result in topic.results_by_partition
    }


async def test_partitions_are_added_all_or_none(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    request = producer.add_request("t", 0, 7, 1)
    request.v3_and_below_topics.append(AddPartitionsToTxnTopic(name="nowhere", partitions=[0]))
    response = await simulated_broker.send(request, 3)
    assert codes(response.results_by_topic_v3_and_below) == {
        ("t", 0): OperationNotAttempted.code,
        ("t", 7): UnknownTopicOrPartition.code,
        ("t", 1): OperationNotAttempted.code,
        ("nowhere", 0): UnknownTopicOrPartition.code,
    }
    assert await state(simulated_broker) == "Empty"


@pytest.mark.parametrize("topic", [CONSUMER_OFFSETS, TRANSACTION_STATE])
async def test_internal_topics_cannot_be_added(simulated_broker: SimulatedBroker, topic: str) -> None:
    producer = await ready(simulated_broker)
    assert await producer.add(topic, 0) == InvalidTopic.code


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_errors_are_returned_for_every_partition(simulated_broker: SimulatedBroker, version: int) -> None:
    producer = await fenced(simulated_broker)
    response = await simulated_broker.send(producer.add_request("t", 0, 1), version)
    code = InvalidProducerEpoch.code if version < 2 else ProducerFenced.code
    assert codes(response.results_by_topic_v3_and_below) == {("t", 0): code, ("t", 1): code}


async def test_an_unknown_producer_cannot_add(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    producer.producer_id += 1
    assert await producer.add("t", 0) == InvalidProducerIdMapping.code
    producer.transactional_id = "unknown"
    assert await producer.add("t", 0) == InvalidProducerIdMapping.code
    producer.transactional_id = ""
    assert await producer.add("t", 0) == InvalidRequest.code


async def batched(
    simulated_broker: SimulatedBroker, producer: Transactor, *partitions: int, verify: bool, version: int = 5
) -> Any:
    requested = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[*partitions])],
    )
    response = await simulated_broker.send(AddPartitionsToTxnRequest(transactions=[requested]), version)
    assert response.error_code == 0
    (result,) = response.results_by_transaction
    assert result.transactional_id == producer.transactional_id
    return [*codes(result.topic_results).values()]


async def test_one_request_adds_to_or_verifies_many_transactions(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    assert await batched(simulated_broker, producer, 0, verify=True) == [TransactionAbortable.code]
    assert await batched(simulated_broker, producer, 0, verify=True, version=4) == [InvalidTransactionState.code]
    assert await batched(simulated_broker, producer, 0, verify=False) == [0]
    assert await batched(simulated_broker, producer, 0, 1, 9, verify=True) == [
        0,
        TransactionAbortable.code,
        UnknownTopicOrPartition.code,
    ]
    producer.epoch += 1
    assert await batched(simulated_broker, producer, 0, verify=True) == [ProducerFenced.code]
    assert await batched(simulated_broker, producer, 0, verify=False) == [ProducerFenced.code]


# AddOffsetsToTxn


async def test_the_partition_of_the_groups_offsets_becomes_part_of_the_transaction(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker)
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="readers"
    )
    for version in (0, 4):
        assert (await simulated_broker.send(request, version)).error_code == 0
    index = simulated_broker.broker.offsets_log.partition_of("readers").index
    (topic,) = (await described(simulated_broker)).topics
    assert (topic.topic, topic.partitions) == (CONSUMER_OFFSETS, [index])
    request.producer_epoch += 1
    assert (await simulated_broker.send(request, 1)).error_code == InvalidProducerEpoch.code
    assert (await simulated_broker.send(request, 2)).error_code == ProducerFenced.code
    request.group_id = ""
    assert (await simulated_broker.send(request, 4)).error_code == InvalidGroupId.code


# EndTxn


async def test_an_end_without_a_transaction_is_rejected_in_the_older_protocol(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker)
    assert await producer.commit() == InvalidTransactionState.code
    assert await producer.abort() == InvalidTransactionState.code


async def test_an_empty_abort_succeeds_in_the_newer_protocol(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker, NEWER)
    assert await producer.commit() == InvalidTransactionState.code
    assert await producer.abort() == 0
    assert producer.epoch == 1


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (0, InvalidProducerEpoch),
        (1, InvalidProducerEpoch),
        (2, ProducerFenced),
        (4, ProducerFenced),
        (5, ProducerFenced),
    ],
)
async def test_a_fenced_producer_ends_nothing(
    simulated_broker: SimulatedBroker, version: int, error: type[HeadraceError]
) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    other = Transactor(simulated_broker, generation=OLDER)
    assert await other.init() == 0
    await other.send(b"y")
    producer.generation = version
    response = await producer.begin_end()
    assert response.error_code == error.code
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert await state(simulated_broker) == "Ongoing"


async def test_an_end_without_an_id_is_rejected(simulated_broker: SimulatedBroker) -> None:
    assert (await simulated_broker.send(EndTxnRequest(transactional_id=""), 3)).error_code == InvalidRequest.code
    assert (await simulated_broker.send(EndTxnRequest(transactional_id="unknown"), 3)).error_code == NotCoordinator.code
    await ready(simulated_broker, NEWER)
    assert (
        await simulated_broker.send(EndTxnRequest(transactional_id="unknown"), 3)
    ).error_code == InvalidProducerIdMapping.code


@pytest.mark.parametrize("commit", [True, False])
async def test_after_the_last_epoch_a_producer_gets_a_new_id(simulated_broker: SimulatedBroker, commit: bool) -> None:
    producer = await ready(simulated_broker, NEWER)
    transactions = simulated_broker.broker.transactions.of(ID).transactions
    present = transactions.find(ID)
    assert present is not None
    last = type(present)(ID, type(present.producer)(present.producer.id, 32_766), 60_000, present.updated_ms)
    transactions.apply(last)
    producer.epoch = 32_766
    assert await producer.send(b"x") == 0
    before = producer.producer_id
    late = Transactor(simulated_broker)
    late.producer_id, late.epoch = before, producer.epoch
    assert await producer.end(commit=commit) == 0
    assert (producer.producer_id != before, producer.epoch) == (True, 0)
    assert await late.end(commit=commit) == 0
    assert (late.producer_id, late.epoch) == (producer.producer_id, 0)
    assert await producer.send(b"y") == 0
    assert await producer.commit() == 0
    result = await partition_contents(simulated_broker)
    assert result[:2] == (([b"x", b"y"], []) if commit else ([b"y"], [b"x"]))
