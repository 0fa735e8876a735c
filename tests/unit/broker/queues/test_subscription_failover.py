"""After a leader change, acked messages stay acked, and leased messages are delivered again."""

from __future__ import annotations

import asyncio

from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import (
    ACK,
    CREATE,
    NACK,
    LeasedRecord,
    SubscriptionMember,
    alter,
    describe,
    leased_records,
    values_of,
)
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

from headrace.model.errors import InvalidRecordState, NotLeader

ACKS = "__acks.jobs"


async def queue(simulated_cluster: SimulatedCluster, **configs: str) -> SimulatedClusterBroker:
    """Create a topic with a subscription on all brokers, all in sync; return its leader."""
    await simulated_cluster.create_topic("jobs", by=None, **configs)
    leader = await simulated_cluster.wait_for_leader("jobs")
    assert (await alter(leader, CREATE)).error_code == 0
    await simulated_cluster.wait_until_in_sync("jobs")
    await simulated_cluster.wait_until_in_sync(ACKS)
    return leader


async def serving(simulated_cluster: SimulatedCluster, but: int | None = None) -> SimulatedClusterBroker:
    """Return the broker that leads both the partition and its acks log, and knows it."""

    def is_served() -> bool:
        leader = simulated_cluster.record("jobs").leader
        return (
            leader not in (-1, but)
            and simulated_cluster.record(ACKS).leader == leader
            and simulated_cluster[leader].is_open
            and simulated_cluster.leads(leader, "jobs")
            and simulated_cluster.leads(leader, ACKS)
        )

    await simulated_cluster.wait_until(is_served)
    return simulated_cluster.leader("jobs")


async def lease_some(member: SubscriptionMember, count: int = 100) -> list[LeasedRecord]:
    """Retry retriable errors like a client."""
    while True:
        responses = await member.request_leases(count, wait_ms=1000)
        if not any(response.error_code for response in responses):
            return leased_records(responses)
        await asyncio.sleep(0.1)


@in_simulated_cluster()
async def test_a_leader_that_may_have_been_replaced_grants_no_leases(simulated_cluster: SimulatedCluster) -> None:
    """Otherwise it would deliver messages again that were settled with its successor."""
    leader = await queue(simulated_cluster)
    await produce(leader, "jobs", b"a", b"b")
    member = SubscriptionMember(leader)
    (message,) = await member.lease(1)
    leader.registry.disconnect()
    await asyncio.sleep(0.01)
    assert [response.error_code for response in await member.request_leases(1)] == [NotLeader.code]
    assert await member.settle([message], ACK) == [0], "a settle counts only when it is committed"
    leader.registry.reconnect()
    await asyncio.sleep(0.1)
    assert values_of(await lease_some(member)) == [b"b"]


@in_simulated_cluster()
async def test_acks_survive_a_leader_failure_and_leases_do_not(simulated_cluster: SimulatedCluster) -> None:
    leader = await queue(simulated_cluster)
    await produce(leader, "jobs", b"a", b"b", b"c", b"d")
    member = SubscriptionMember(leader)
    messages = await member.lease(3)
    await member.ack([messages[1]])
    assert await member.settle([messages[2]], NACK, delay_ms=60_000) == [0]
    leader.kill(keep_page_cache=False)
    successor = await serving(simulated_cluster, but=leader.node_id)
    member = SubscriptionMember(successor)
    again = await lease_some(member)
    assert [(one.value, one.attempt) for one in again] == [(b"a", 1), (b"d", 1)]
    assert await member.settle([messages[0]]) == [InvalidRecordState.code], "that lease ended with its leader"
    await asyncio.sleep(61)
    assert [(one.value, one.attempt) for one in await lease_some(member) if one.value == b"c"] == [(b"c", 2)]


@in_simulated_cluster()
async def test_subscriptions_move_with_the_leadership(simulated_cluster: SimulatedCluster) -> None:
    leader = await queue(simulated_cluster)
    await produce(leader, "jobs", b"a", b"b")
    member = SubscriptionMember(leader)
    first, _ = await member.lease()
    polling = asyncio.create_task(member.request_leases(wait_ms=60_000))
    await asyncio.sleep(0.1)
    other = next(node_id for node_id in simulated_cluster.record("jobs").replicas if node_id != leader.node_id)
    await simulated_cluster.move_leadership("jobs", other)
    assert {response.error_code for response in await polling} == {NotLeader.code}
    successor = await serving(simulated_cluster, but=leader.node_id)
    assert successor.node_id == other
    assert (await member.settle([first]))[0] in (NotLeader.code, InvalidRecordState.code)
    again = SubscriptionMember(successor)
    assert values_of(await lease_some(again)) == [b"a", b"b"]


@in_simulated_cluster()
async def test_a_broker_that_leads_only_one_of_both_partitions_serves_no_subscription(
    simulated_cluster: SimulatedCluster,
) -> None:
    leader = await queue(simulated_cluster)
    await produce(leader, "jobs", b"a")
    other = next(node_id for node_id in simulated_cluster.record("jobs").replicas if node_id != leader.node_id)
    subscriptions = leader.broker.subscriptions.of("jobs", 0)
    await simulated_cluster.move_leadership("jobs", other)
    (response,) = await SubscriptionMember(leader).request_leases()
    assert response.error_code == NotLeader.code
    await serving(simulated_cluster, but=leader.node_id)
    (response,) = await SubscriptionMember(leader).request_leases()
    assert response.error_code == NotLeader.code
    assert subscriptions._closed is not None


@in_simulated_cluster()
async def test_a_settle_responds_when_the_followers_have_it(simulated_cluster: SimulatedCluster) -> None:
    leader = await queue(simulated_cluster, min_insync_replicas="2")
    await produce(leader, "jobs", b"a")
    member = SubscriptionMember(leader)
    messages = await member.lease()
    for node_id in simulated_cluster.simulated_brokers:
        if node_id != leader.node_id:
            simulated_cluster[node_id].host.disk.delay_seconds = (0.5, 0.5)
    settling = asyncio.create_task(member.settle(messages))
    await asyncio.sleep(0.3)
    assert not settling.done()
    assert await settling == [0]


@in_simulated_cluster()
async def test_acked_messages_never_return_after_many_failovers(
    simulated_cluster: SimulatedCluster,
) -> None:
    await queue(simulated_cluster)
    acked: set[bytes] = set()
    for turn in range(4):
        leader = await serving(simulated_cluster)
        await produce(leader, "jobs", *(b"%d.%d" % (turn, number) for number in range(10)))
        member = SubscriptionMember(leader)
        messages = await lease_some(member, 15)
        assert not acked & set(values_of(messages))
        await member.ack(messages[::2])
        acked |= set(values_of(messages[::2]))
        leader.kill(keep_page_cache=turn % 2 == 0)
        await serving(simulated_cluster, but=leader.node_id)
        await simulated_cluster.open(leader.node_id)
        await simulated_cluster.wait_until_in_sync("jobs")
        await simulated_cluster.wait_until_in_sync(ACKS)
    last = await serving(simulated_cluster)
    rest = await lease_some(SubscriptionMember(last), 1000)
    everything = {b"%d.%d" % (turn, number) for turn in range(4) for number in range(10)}
    assert set(values_of(rest)) == everything - acked
    assert [one.backlog for one in await describe(last)] == [len(everything) - len(acked)]
