"""What transactional producers may ask, and the words in which each generation of them is answered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.transacting import ID, NEWER, OLDER, Transactor, described, state, story

from headrace.model.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.wire.messages.end_txn import EndTxnRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest


async def ready(house: House, generation: int = OLDER) -> Transactor:
    await house.make_topic("t", 2)
    producer = Transactor(house, generation=generation)
    assert await producer.init() == 0
    return producer


async def fenced(house: House) -> Transactor:
    """A producer whom another has taken the id from."""
    producer = await ready(house)
    assert await Transactor(house).init() == 0
    return producer


# InitProducerId


async def init(house: House, version: int = 4, **fields: Any) -> tuple[int, int, int]:
    response = await house.ask(InitProducerIdRequest(**fields), version)
    return response.error_code, response.producer_id, response.producer_epoch


@pytest.mark.parametrize("version", [0, 5])
async def test_a_producer_without_transactions_gets_an_id_of_its_own(house: House, version: int) -> None:
    answers = [await init(house, version) for _ in range(3)]
    assert [(code, epoch) for code, _, epoch in answers] == [(0, 0)] * 3
    assert len({producer_id for _, producer_id, _ in answers}) == 3
    assert house.broker.catalogue.find(TRANSACTION_STATE) is None, "nobody needs it yet"


async def test_requests_that_contradict_themselves_are_refused(house: House) -> None:
    assert await init(house, transactional_id="", transaction_timeout_ms=1) == (42, -1, -1)
    assert await init(house, producer_id=1) == (42, -1, -1)
    assert await init(house, producer_epoch=1) == (42, -1, -1)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
async def test_a_timeout_out_of_bounds_is_refused(house: House, timeout_ms: int) -> None:
    assert await init(house, transactional_id=ID, transaction_timeout_ms=timeout_ms) == (50, -1, -1)
    assert (await described(house)).error_code == 105


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
async def test_a_producer_that_was_replaced_hears_it_in_its_own_words(house: House, version: int, code: int) -> None:
    producer = await fenced(house)
    assert await producer.init(claims=True, version=version) == code


async def test_an_unavailable_registry_is_told_as_an_absent_coordinator(house: House) -> None:
    house.registry.unavailable = True
    assert await init(house) == (15, -1, -1)
    assert await init(house, transactional_id=ID, transaction_timeout_ms=1_000) == (15, -1, -1)
    house.registry.unavailable = False
    assert (await init(house, transactional_id=ID, transaction_timeout_ms=1_000))[0] == 0


# AddPartitionsToTxn


def codes(results: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in results
        for result in topic.results_by_partition
    }


async def test_partitions_are_added_all_or_none(house: House) -> None:
    producer = await ready(house)
    request = producer.add_request("t", 0, 7, 1)
    request.v3_and_below_topics.append(AddPartitionsToTxnTopic(name="nowhere", partitions=[0]))
    response = await house.ask(request, 3)
    assert codes(response.results_by_topic_v3_and_below) == {
        ("t", 0): 55,
        ("t", 7): 3,
        ("t", 1): 55,
        ("nowhere", 0): 3,
    }
    assert await state(house) == "Empty"


@pytest.mark.parametrize("topic", [CONSUMER_OFFSETS, TRANSACTION_STATE])
async def test_nobody_adds_the_brokers_own_logs(house: House, topic: str) -> None:
    producer = await ready(house)
    assert await producer.add(topic, 0) == 17


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_refusals_are_told_of_every_partition(house: House, version: int) -> None:
    producer = await fenced(house)
    response = await house.ask(producer.add_request("t", 0, 1), version)
    code = 47 if version < 2 else 90
    assert codes(response.results_by_topic_v3_and_below) == {("t", 0): code, ("t", 1): code}


async def test_a_stranger_cannot_add(house: House) -> None:
    producer = await ready(house)
    producer.producer_id += 1
    assert await producer.add("t", 0) == 49
    producer.transactional_id = "unknown"
    assert await producer.add("t", 0) == 49
    producer.transactional_id = ""
    assert await producer.add("t", 0) == 42


async def batched(house: House, producer: Transactor, *partitions: int, verify: bool, version: int = 5) -> Any:
    asked = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[*partitions])],
    )
    response = await house.ask(AddPartitionsToTxnRequest(transactions=[asked]), version)
    assert response.error_code == 0
    (result,) = response.results_by_transaction
    assert result.transactional_id == producer.transactional_id
    return [*codes(result.topic_results).values()]


async def test_many_transactions_can_be_added_to_or_asked_about_at_once(house: House) -> None:
    producer = await ready(house)
    assert await batched(house, producer, 0, verify=True) == [120]
    assert await batched(house, producer, 0, verify=True, version=4) == [48]
    assert await batched(house, producer, 0, verify=False) == [0]
    assert await batched(house, producer, 0, 1, 9, verify=True) == [0, 120, 3]
    producer.epoch += 1
    assert await batched(house, producer, 0, verify=True) == [90]
    assert await batched(house, producer, 0, verify=False) == [90]


# AddOffsetsToTxn


async def test_the_partition_of_the_groups_offsets_becomes_part_of_the_transaction(house: House) -> None:
    producer = await ready(house)
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="readers"
    )
    for version in (0, 4):
        assert (await house.ask(request, version)).error_code == 0
    index = house.broker.offsets_log.partition_of("readers").index
    (topic,) = (await described(house)).topics
    assert (topic.topic, topic.partitions) == (CONSUMER_OFFSETS, [index])
    request.producer_epoch += 1
    assert (await house.ask(request, 1)).error_code == 47
    assert (await house.ask(request, 2)).error_code == 90
    request.group_id = ""
    assert (await house.ask(request, 4)).error_code == 24


# EndTxn


async def test_an_end_without_a_transaction_is_refused_in_the_older_protocol(house: House) -> None:
    producer = await ready(house)
    assert await producer.commit() == 48
    assert await producer.abort() == 48


async def test_an_abort_of_nothing_is_welcome_in_the_newer_protocol(house: House) -> None:
    producer = await ready(house, NEWER)
    assert await producer.commit() == 48
    assert await producer.abort() == 0
    assert producer.epoch == 1


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (4, 90), (5, 90)])
async def test_who_was_replaced_ends_nothing(house: House, version: int, code: int) -> None:
    producer = await ready(house)
    await producer.send(b"x")
    other = Transactor(house, generation=OLDER)
    assert await other.init() == 0
    await other.send(b"y")
    producer.generation = version
    response = await producer.begin_end()
    assert response.error_code == code
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert await state(house) == "Ongoing"


async def test_an_end_without_an_id_makes_no_sense(house: House) -> None:
    assert (await house.ask(EndTxnRequest(transactional_id=""), 3)).error_code == 42
    assert (await house.ask(EndTxnRequest(transactional_id="unknown"), 3)).error_code == 16
    await ready(house, NEWER)
    assert (await house.ask(EndTxnRequest(transactional_id="unknown"), 3)).error_code == 49


@pytest.mark.parametrize("commit", [True, False])
async def test_behind_the_last_epoch_a_producer_goes_on_under_a_new_id(house: House, commit: bool) -> None:
    producer = await ready(house, NEWER)
    transactions = house.broker.transactions.of(ID).transactions
    present = transactions.find(ID)
    assert present is not None
    last = type(present)(ID, type(present.producer)(present.producer.id, 32_766), 60_000, present.updated_ms)
    transactions.apply(last)
    producer.epoch = 32_766
    assert await producer.send(b"x") == 0
    before = producer.producer_id
    late = Transactor(house)
    late.producer_id, late.epoch = before, producer.epoch
    assert await producer.end(commit=commit) == 0
    assert (producer.producer_id != before, producer.epoch) == (True, 0)
    assert await late.end(commit=commit) == 0
    assert (late.producer_id, late.epoch) == (producer.producer_id, 0)
    assert await producer.send(b"y") == 0
    assert await producer.commit() == 0
    told = await story(house)
    assert told[:2] == (([b"x", b"y"], []) if commit else ([b"y"], [b"x"]))
