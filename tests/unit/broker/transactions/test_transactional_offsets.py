"""TxnOffsetCommit: offsets take effect when the transaction commits."""

from __future__ import annotations

import pytest
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, commit, committed, listed
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.separate_coordinator import SeparateCoordinator
from tests.unit.broker.transactions.transaction_support import NEWER, OLDER, Transactor, restarted

from headrace.model.errors import (
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTransactionState,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from headrace.wire.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.messages.transactions import AddOffsetsToTxnRequest

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


def request(one: Transactor, offset: int, topic: str = "t") -> TxnOffsetCommitRequest:
    requested = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return TxnOffsetCommitRequest(
        transactional_id=one.transactional_id,
        group_id=GROUP,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[requested])],
    )


async def commit_in(one: Transactor, offset: int, topic: str = "t") -> int:
    """Add the group, if that is not left to the broker, and commit."""
    if one.generation == OLDER:
        add = AddOffsetsToTxnRequest(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            group_id=GROUP,
        )
        assert (await one.simulated_broker.send(add, 3)).error_code == 0
    response = await one.simulated_broker.send(request(one, offset, topic), 5 if one.generation == NEWER else 3)
    return int(response.topics[0].partitions[0].error_code)


async def transactor(simulated_broker: SimulatedBroker, generation: int = NEWER) -> Transactor:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker, generation=generation)
    assert await one.init() == 0
    return one


@each_generation
async def test_offsets_count_when_the_transaction_is_committed(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    one = await transactor(simulated_broker, generation)
    assert await commit_in(one, 7) == 0
    assert await committed(simulated_broker) == (-1, "")
    assert await one.commit() == 0
    assert await committed(simulated_broker) == (7, "m")
    assert await listed(simulated_broker) == {GROUP: "Empty"}


@each_generation
async def test_offsets_of_an_aborted_transaction_have_no_effect(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    one = await transactor(simulated_broker, generation)
    await commit(simulated_broker, 3, metadata="plain")
    await commit_in(one, 7)
    await one.abort()
    assert await committed(simulated_broker) == (3, "plain")


@pytest.mark.parametrize("decides", ["before", "after"])
async def test_offsets_are_known_after_a_crash_before_or_after_the_decision(
    simulated_broker: SimulatedBroker, decides: str
) -> None:
    one = await transactor(simulated_broker)
    await commit_in(one, 7)
    if decides == "before":
        await one.commit()
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    if decides == "after":
        assert await committed(simulated_broker) == (-1, "")
        await one.commit()
    assert await committed(simulated_broker) == (7, "m")


async def test_a_fetch_of_stable_offsets_gets_a_retriable_error(simulated_broker: SimulatedBroker) -> None:
    one = await transactor(simulated_broker)
    await commit(simulated_broker, 3)
    await commit_in(one, 7)

    async def fetch(*, stable: bool) -> tuple[int, int]:
        requested = OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
            require_stable=stable,
        )
        response = (await simulated_broker.send(requested, 7)).topics[0].partitions[0]
        return response.error_code, response.committed_offset

    assert await fetch(stable=True) == (UnstableOffsetCommit.code, -1)
    assert await fetch(stable=False) == (0, 3)
    await one.commit()
    assert await fetch(stable=True) == (0, 7)


async def test_the_older_protocol_must_add_the_group_first(simulated_broker: SimulatedBroker) -> None:
    one = await transactor(simulated_broker, OLDER)
    await commit(simulated_broker, 3)
    response = await simulated_broker.send(request(one, 7), 3)
    assert response.topics[0].partitions[0].error_code == InvalidTransactionState.code


async def test_a_member_of_an_old_generation_commits_nothing(simulated_broker: SimulatedBroker) -> None:
    one = await transactor(simulated_broker)
    member = ClassicMember(simulated_broker)
    await member.enter()
    requested = request(one, 7)
    requested.member_id, requested.generation_id = member.id, member.generation + 1
    assert (await simulated_broker.send(requested, 5)).topics[0].partitions[0].error_code == IllegalGeneration.code
    requested.generation_id = member.generation
    assert (await simulated_broker.send(requested, 5)).topics[0].partitions[0].error_code == 0


async def test_a_producer_that_was_replaced_commits_nothing(simulated_broker: SimulatedBroker) -> None:
    one = await transactor(simulated_broker)
    await Transactor(simulated_broker).init()
    assert await commit_in(one, 7) == InvalidProducerEpoch.code


async def test_only_nonexistent_partitions_are_rejected(simulated_broker: SimulatedBroker) -> None:
    one = await transactor(simulated_broker)
    assert await commit_in(one, 7, "missing") == UnknownTopicOrPartition.code


@each_generation
async def test_offsets_join_a_transaction_that_another_broker_coordinates(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator = await SeparateCoordinator.build(simulated_broker, monkeypatch)
    one = Transactor(separate_coordinator, generation=generation)
    assert await one.init() == 0
    for offset, commits in ((7, True), (8, False)):
        assert await commit_in(one, offset) == 0
        assert await committed(simulated_broker) == (-1 if commits else 7, "" if commits else "m")
        assert await one.end(commit=commits) == 0
        assert await committed(simulated_broker) == (7, "m")


async def test_offsets_of_a_transaction_without_the_group_are_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator = await SeparateCoordinator.build(simulated_broker, monkeypatch)
    one = Transactor(separate_coordinator, generation=OLDER)
    assert await one.init() == 0
    response = await separate_coordinator.send(request(one, 7), 3)
    assert response.topics[0].partitions[0].error_code == InvalidTransactionState.code
