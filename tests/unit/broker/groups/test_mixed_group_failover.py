"""Groups whose members use both protocols: failover of their coordinator, and offsets in transactions."""

from __future__ import annotations

from tests.unit.broker.groups.classic_members import GROUP, commit, committed, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember
from tests.unit.broker.groups.test_coordinator_failover import each_way_to_leave
from tests.unit.broker.groups.test_group_migration import PARTITIONS, Reader, classic_group, rounds, shared
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import Leave, SimulatedCluster, in_simulated_cluster
from tests.unit.broker.transactions.transaction_support import Transactor

from headrace.model.errors import IllegalGeneration, UnknownMemberId
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


async def mixed_group(broker: SimulatedBroker) -> tuple[Reader, Reader, ConsumerMember]:
    """Two classic members and one of the consumer protocol share the partitions of a topic."""
    one, two = await classic_group(broker)
    assert await one.commit(5) == 0
    new = ConsumerMember(broker, "m1", "t")
    assert (await new.beat()).error_code == 0
    await rounds(broker, one, two, new)
    assert shared(one, two, new) == list(range(PARTITIONS))
    return one, two, new


@each_way_to_leave
@in_simulated_cluster()
async def test_members_of_both_protocols_continue_with_the_next_coordinator(
    simulated_cluster: SimulatedCluster, leave: Leave
) -> None:
    first = await simulated_cluster.wait_for_coordinator()
    one, two, new = members = await mixed_group(first)
    owned = [list(member.indexes) for member in members]
    await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = await simulated_cluster.wait_for_new_coordinator(first)
    await second.pass_time(1)
    for member in members:
        member.simulated_broker = second
    await rounds(second, one, two, new)
    assert [list(member.indexes) for member in members] == owned
    assert await committed(second) == (5, "")
    assert await two.leave() == 0
    await rounds(second, one, new)
    assert shared(one, new) == list(range(PARTITIONS))
    assert await one.leave() == 0
    await rounds(second, new)
    assert new.indexes == list(range(PARTITIONS))
    assert await listed(second, types_filter=["consumer"]) == {GROUP: "Stable"}


async def commit_in_transaction(one: Transactor, offset: int, generation: int, member_id: str) -> int:
    requested = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id=one.transactional_id,
        group_id=GROUP,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        generation_id=generation,
        member_id=member_id,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[requested])],
    )
    response = await one.simulated_broker.send(request, 5)
    return int(response.topics[0].partitions[0].error_code)


async def test_transactions_of_a_mixed_group_commit_offsets_of_members_of_both_protocols(
    simulated_broker: SimulatedBroker,
) -> None:
    one, _two, new = await mixed_group(simulated_broker)
    producer = Transactor(simulated_broker)
    assert await producer.init() == 0
    assert await commit_in_transaction(producer, 7, one.generation, one.id) == 0
    assert await producer.commit() == 0
    assert await committed(simulated_broker) == (7, "")
    assert await commit_in_transaction(producer, 9, new.epoch, new.id) == 0
    assert await producer.commit() == 0
    assert await committed(simulated_broker) == (9, "")


async def test_a_transaction_of_a_mixed_group_cannot_commit_for_an_earlier_generation_or_an_unknown_member(
    simulated_broker: SimulatedBroker,
) -> None:
    one, _two, new = await mixed_group(simulated_broker)
    producer = Transactor(simulated_broker)
    assert await producer.init() == 0
    assert await commit_in_transaction(producer, 7, one.generation - 1, one.id) == IllegalGeneration.code
    assert await commit_in_transaction(producer, 7, new.epoch, "nobody") == UnknownMemberId.code
    assert await commit(simulated_broker, 8, generation=one.generation, member_id=one.id) == 0
    await producer.abort()
    assert await committed(simulated_broker) == (8, "")
