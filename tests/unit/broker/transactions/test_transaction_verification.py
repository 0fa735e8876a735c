"""A leader accepts transactional batches only after the coordinator, perhaps on another broker, has verified them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.separate_coordinator import COORDINATOR, SeparateCoordinator
from tests.unit.broker.transactions.transaction_support import NEWER, OLDER, Transactor, partition_contents, state

from headrace.broker.transactions.verified_transactions import VerifiedTransactions
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch
from headrace.model.errors import InvalidProducerEpoch, InvalidTransactionState, NotEnoughReplicas
from headrace.wire.messages.transactions import AddPartitionsToTxnRequest

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def ready(
    simulated_broker: SimulatedBroker, patch: pytest.MonkeyPatch, generation: int = NEWER
) -> tuple[SeparateCoordinator, Transactor]:
    separate_coordinator = await SeparateCoordinator.build(simulated_broker, patch)
    producer = Transactor(separate_coordinator, generation=generation)
    assert await producer.init() == 0
    return separate_coordinator, producer


@each_generation
async def test_a_transaction_is_verified_once(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, generation)
    for number in range(3):
        assert await producer.send(b"%d" % number) == 0
    (call,) = separate_coordinator.of_type(AddPartitionsToTxnRequest)
    assert call.transactions[0].verify_only == (generation == OLDER)
    assert await state(separate_coordinator) == "Ongoing"
    assert await producer.commit() == 0
    assert await partition_contents(separate_coordinator) == ([b"0", b"1", b"2"], [], [], 1)
    assert await producer.send(b"next") == 0
    assert len(separate_coordinator.of_type(AddPartitionsToTxnRequest)) == 2
    assert await producer.abort() == 0
    assert (await partition_contents(separate_coordinator)).aborted == [b"next"]


async def test_a_partition_that_was_not_added_is_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, producer = await ready(simulated_broker, monkeypatch, OLDER)
    assert await producer.add("t", 1) == 0
    assert await producer.produce(b"x", partition=0) == InvalidTransactionState.code
    assert await producer.produce(b"x", partition=1) == 0


@each_generation
async def test_a_fenced_producer_is_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator, old = await ready(simulated_broker, monkeypatch, generation)
    new = Transactor(separate_coordinator, generation=generation)
    assert await new.init() == 0
    assert await old.produce(b"x") == InvalidProducerEpoch.code


@each_generation
async def test_an_unavailable_coordinator_is_queried_again(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, generation)
    separate_coordinator.silent.add(COORDINATOR)
    if generation == OLDER:
        assert await producer.add("t", 0) == 0
    assert await producer.produce(b"x") == NotEnoughReplicas.code
    assert not simulated_broker.broker.catalogue.partition("t", 0).state.producers.describe()
    separate_coordinator.silent.clear()
    assert await producer.produce(b"x") == 0


@each_generation
async def test_a_marker_cancels_a_verification_in_progress(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, generation)
    if generation == OLDER:
        assert await producer.add("t", 0) == 0
    separate_coordinator.held.add(AddPartitionsToTxnRequest)
    sending = asyncio.create_task(producer.produce(b"late"))
    await simulated_broker.pass_time(0.1)
    assert await producer.abort() == 0
    await separate_coordinator.release_held()
    assert await sending != 0
    assert simulated_broker.partition("t").last_stable_offset == simulated_broker.partition("t").high_watermark


async def test_a_marker_without_batches_here_cancels_too(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition has a marker of this epoch, and is not given a second one."""
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, OLDER)
    assert await producer.send(b"first") == 0
    assert await producer.commit() == 0
    assert await producer.add("t", 0) == 0
    separate_coordinator.held.add(AddPartitionsToTxnRequest)
    sending = asyncio.create_task(producer.produce(b"late"))
    await simulated_broker.pass_time(0.1)
    assert await producer.abort() == 0
    await separate_coordinator.release_held()
    assert await sending == NotEnoughReplicas.code
    assert await partition_contents(separate_coordinator) == ([b"first"], [], [], 1)


async def test_a_verification_ends_with_the_leadership_and_with_the_producer_epoch(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    partition, verified, producer = simulated_broker.partition("t"), VerifiedTransactions(), ProducerIdAndEpoch(7, 0)
    question = verified.begin_verification(partition, producer)
    assert not verified.holds(partition, producer)
    question.is_confirmed = True
    assert verified.holds(partition, producer)
    assert not verified.holds(partition, ProducerIdAndEpoch(7, 1))
    assert verified.begin_verification(partition, producer) is question
    partition.leader_epoch += 1
    assert not verified.holds(partition, producer)
    assert verified.begin_verification(partition, producer) is not question


async def test_a_cancelled_verification_leaves_nothing_behind(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    partition, verified, producer = simulated_broker.partition("t"), VerifiedTransactions(), ProducerIdAndEpoch(7, 0)
    question = verified.begin_verification(partition, producer)
    verified.give_up(partition, producer, question)
    question.is_confirmed = True
    assert not verified.holds(partition, producer)
    verified.begin_verification(partition, producer).is_confirmed = True
    verified.forget_partition(partition)
    assert not verified.holds(partition, producer)
