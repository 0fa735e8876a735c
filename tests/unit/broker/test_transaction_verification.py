"""A leader takes transactional batches only on the word of their coordinator, also if that is another broker."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.apart import COORDINATOR, Apart
from tests.unit.broker.house import House
from tests.unit.broker.transacting import NEWER, OLDER, Transactor, state, story

from headrace.broker.verified_transactions import VerifiedTransactions
from headrace.machines.transaction_state import Producer
from headrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

both = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def ready(house: House, patch: pytest.MonkeyPatch, generation: int = NEWER) -> tuple[Apart, Transactor]:
    apart = await Apart.build(house, patch)
    producer = Transactor(apart, generation=generation)
    assert await producer.init() == 0
    return apart, producer


@both
async def test_a_transaction_is_asked_for_once_and_then_known_here(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart, producer = await ready(house, monkeypatch, generation)
    for number in range(3):
        assert await producer.send(b"%d" % number) == 0
    (call,) = apart.of_type(AddPartitionsToTxnRequest)
    assert call.transactions[0].verify_only == (generation == OLDER)
    assert await state(apart) == "Ongoing"
    assert await producer.commit() == 0
    assert await story(apart) == ([b"0", b"1", b"2"], [], [], 1)
    assert await producer.send(b"next") == 0
    assert len(apart.of_type(AddPartitionsToTxnRequest)) == 2
    assert await producer.abort() == 0
    assert (await story(apart)).aborted == [b"next"]


async def test_a_partition_that_was_not_added_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = await ready(house, monkeypatch, OLDER)
    assert await producer.add("t", 1) == 0
    assert await producer.produce(b"x", partition=0) == 48
    assert await producer.produce(b"x", partition=1) == 0


@both
async def test_a_producer_that_was_replaced_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart, old = await ready(house, monkeypatch, generation)
    new = Transactor(apart, generation=generation)
    assert await new.init() == 0
    assert await old.produce(b"x") == 47


@both
async def test_a_coordinator_that_cannot_be_asked_is_asked_again(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart, producer = await ready(house, monkeypatch, generation)
    apart.silent.add(COORDINATOR)
    if generation == OLDER:
        assert await producer.add("t", 0) == 0
    assert await producer.produce(b"x") == 19
    assert not house.broker.catalogue.partition("t", 0).state.producers.describe()
    apart.silent.clear()
    assert await producer.produce(b"x") == 0


@both
async def test_an_answer_that_a_marker_has_overtaken_does_not_count(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart, producer = await ready(house, monkeypatch, generation)
    if generation == OLDER:
        assert await producer.add("t", 0) == 0
    apart.held.add(AddPartitionsToTxnRequest)
    sending = asyncio.create_task(producer.produce(b"late"))
    await house.pass_time(0.1)
    assert await producer.abort() == 0
    await apart.let_go()
    assert await sending != 0
    assert house.partition("t").last_stable_offset == house.partition("t").high_watermark


async def test_the_end_of_a_transaction_that_wrote_nothing_here_counts_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition has a marker of this epoch, and is not given a second one."""
    apart, producer = await ready(house, monkeypatch, OLDER)
    assert await producer.send(b"first") == 0
    assert await producer.commit() == 0
    assert await producer.add("t", 0) == 0
    apart.held.add(AddPartitionsToTxnRequest)
    sending = asyncio.create_task(producer.produce(b"late"))
    await house.pass_time(0.1)
    assert await producer.abort() == 0
    await apart.let_go()
    assert await sending == 19
    assert await story(apart) == ([b"first"], [], [], 1)


async def test_a_confirmation_ends_with_the_lead_and_with_the_epoch_of_its_producer(house: House) -> None:
    await house.make_topic("t")
    partition, verified, producer = house.partition("t"), VerifiedTransactions(), Producer(7, 0)
    question = verified.ask(partition, producer)
    assert not verified.holds(partition, producer)
    question.is_confirmed = True
    assert verified.holds(partition, producer)
    assert not verified.holds(partition, Producer(7, 1))
    assert verified.ask(partition, producer) is question
    partition.leader_epoch += 1
    assert not verified.holds(partition, producer)
    assert verified.ask(partition, producer) is not question


async def test_a_question_that_was_given_up_leaves_nothing_behind(house: House) -> None:
    await house.make_topic("t")
    partition, verified, producer = house.partition("t"), VerifiedTransactions(), Producer(7, 0)
    question = verified.ask(partition, producer)
    verified.give_up(partition, producer, question)
    question.is_confirmed = True
    assert not verified.holds(partition, producer)
    verified.ask(partition, producer).is_confirmed = True
    verified.forget_partition(partition)
    assert not verified.holds(partition, producer)
