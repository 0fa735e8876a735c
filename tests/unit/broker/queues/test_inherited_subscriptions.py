"""Partitions that are added to a topic: its subscriptions begin at offset 0 there, on any leader."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import (
    ACK,
    CREATE,
    LATEST,
    LeasedRecord,
    SubscriptionMember,
    alter,
    describe,
    leased_records,
    subscribe,
    values_of,
)
from tests.unit.broker.share_groups.share_members import ShareMember, taken
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.partition import Partition
from headrace.broker.queues.acks_log import AcksLog
from headrace.broker.queues.start_position import InheritedSubscriptions
from headrace.model.errors import CoordinatorLoading, NotLeader
from headrace.model.registry_records import TopicRecord

ACKS = "__acks.jobs"


async def grow(simulated_broker: SimulatedBroker, total: int) -> None:
    await simulated_broker.host.start(simulated_broker.broker.catalogue.add_partitions("jobs", total), "grow")


async def lease_from(member: SubscriptionMember, partition: int) -> list[LeasedRecord]:
    """Lease like a client, which retries after a retriable error."""
    for _ in range(100):
        responses = await member.request_leases(wait_ms=1000, partitions=[partition])
        if not any(response.error_code for response in responses):
            return leased_records(responses)
        await asyncio.sleep(0.1)
    raise AssertionError(responses)


async def test_a_subscription_begins_with_the_first_message_of_an_added_partition(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await grow(simulated_broker, 3)
    await produce(simulated_broker, "jobs", b"a", b"b", partition=1)
    await produce(simulated_broker, "jobs", b"c", partition=2)
    member = SubscriptionMember(simulated_broker)
    assert values_of(await member.lease(partitions=[1])) == [b"a", b"b"]
    assert values_of(await member.lease(partitions=[2], must_exist=True)) == [b"c"], "as streams and webhooks lease"


async def test_a_share_group_with_reset_latest_begins_with_the_first_message_of_an_added_partition(
    simulated_broker: SimulatedBroker,
) -> None:
    """As in Kafka (KAFKA-20742): `share.auto.offset.reset` applies to topics that are new to the group."""
    await simulated_broker.create_topic("jobs")
    member = ShareMember(simulated_broker)
    await member.fetch(0)
    await grow(simulated_broker, 2)
    await produce(simulated_broker, "jobs", b"a", partition=1)
    assert [one.value for one in taken(await member.fetch(1))] == [b"a"]


async def test_a_later_subscription_starts_at_its_configured_position(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await grow(simulated_broker, 2)
    await produce(simulated_broker, "jobs", b"old", partition=1)
    assert await SubscriptionMember(simulated_broker, subscription="latecomers").lease(partitions=[1]) == []
    await produce(simulated_broker, "jobs", b"new", partition=1)
    assert values_of(await SubscriptionMember(simulated_broker, subscription="latecomers").lease(partitions=[1])) == [
        b"new"
    ]


async def test_an_original_partition_inherits_nothing(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs", 2)
    await produce(simulated_broker, "jobs", b"old", partition=1)
    assert (await alter(simulated_broker, CREATE, offset=LATEST)).error_code == 0
    assert await SubscriptionMember(simulated_broker).lease(partitions=[1]) == []


async def test_inherited_subscriptions_and_their_settlements_survive_a_restart(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await grow(simulated_broker, 2)
    await produce(simulated_broker, "jobs", b"a", b"b", partition=1)
    member = SubscriptionMember(simulated_broker)
    (message,) = await member.lease(1, partitions=[1])
    assert await member.settle([message], ACK) == [0]
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert values_of(await member.lease(partitions=[1])) == [b"b"]


async def test_an_added_partition_of_a_topic_without_subscriptions_has_none(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    await grow(simulated_broker, 2)
    await produce(simulated_broker, "jobs", b"a", partition=1)
    assert await describe(simulated_broker, partition=1) == []


@in_simulated_cluster()
async def test_an_added_partition_serves_no_subscription_until_all_older_leaders_respond(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("jobs", (1,))
    await alter(simulated_cluster[1], CREATE)
    simulated_cluster[1].kill()
    adding = simulated_cluster[2].broker.catalogue.add_partitions("jobs", 2, assignment=((2,),))
    await simulated_cluster[2].host.start(adding, "grow")
    await produce(simulated_cluster[2], "jobs", b"a", partition=1)
    (response,) = await SubscriptionMember(simulated_cluster[2]).request_leases(partitions=[1])
    assert response.error_code == CoordinatorLoading.code
    await simulated_cluster.open(1)
    assert values_of(await lease_from(SubscriptionMember(simulated_cluster[2]), 1)) == [b"a"]


@in_simulated_cluster()
async def test_the_next_leader_inherits_if_the_first_one_dies_before(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulated_cluster.create_topic("jobs", (1, 3))
    await alter(simulated_cluster[1], CREATE)

    async def die(_self: InheritedSubscriptions, acks: AcksLog, _older: int) -> list[str]:
        await asyncio.Event().wait()
        raise NotLeader(acks.partition.topic)

    with monkeypatch.context() as patch:
        patch.setattr(InheritedSubscriptions, "find", die)
        adding = simulated_cluster[1].broker.catalogue.add_partitions("jobs", 2, assignment=((2, 3),))
        await simulated_cluster[1].host.start(adding, "grow")
        await produce(simulated_cluster[2], "jobs", b"a", partition=1)
        await simulated_cluster.wait_until_in_sync("jobs", index=1)
        await simulated_cluster.wait_until_in_sync(ACKS, index=1)
        simulated_cluster[2].kill()
    await simulated_cluster.wait_for_leader("jobs", 3, index=1)
    await simulated_cluster.wait_for_leader(ACKS, 3, index=1)
    assert values_of(await lease_from(SubscriptionMember(simulated_cluster[3]), 1)) == [b"a"]


@in_simulated_cluster()
async def test_settlements_in_an_added_partition_survive_a_leader_change(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("jobs", (1, 2, 3))
    await alter(simulated_cluster[1], CREATE)
    adding = simulated_cluster[1].broker.catalogue.add_partitions("jobs", 2, assignment=((2, 3, 1),))
    await simulated_cluster[1].host.start(adding, "grow")
    await produce(simulated_cluster[2], "jobs", b"a", b"b", partition=1)
    member = SubscriptionMember(simulated_cluster[2])
    (message, _) = await lease_from(member, 1)
    assert await member.settle([message], ACK) == [0]
    await simulated_cluster.wait_until_in_sync("jobs", index=1)
    await simulated_cluster.wait_until_in_sync(ACKS, index=1)
    simulated_cluster[2].kill()
    successor = await simulated_cluster.wait_for_leader(ACKS, index=1)
    assert values_of(await lease_from(SubscriptionMember(successor), 1)) == [b"b"]


# One query for many


class Asked:
    """Counts the queries, which end on request."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()

    async def names(self, places: object) -> frozenset[str]:
        self.count += 1
        await self.gate.wait()
        return frozenset({f"query {self.count}"})


async def test_concurrent_loads_share_a_query_that_began_after_them(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    partition = simulated_broker.partition(ACKS)
    requested = Asked()
    inherited = InheritedSubscriptions(requested.names)
    loads = [asyncio.ensure_future(inherited.find(_acks(partition), 1)) for _ in range(5)]
    await asyncio.sleep(0)
    requested.gate.set()
    assert await asyncio.gather(*loads) == [["query 1"], *[["query 2"]] * 4]
    assert requested.count == 2


def _acks(partition: Partition) -> AcksLog:
    return AcksLog(partition, None, lambda _: (), lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("index", "before"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 4)])
def test_a_topic_knows_how_many_partitions_it_had_before_each_was_added(index: int, before: int) -> None:
    record = TopicRecord(name="t", id=UUID(int=1), partitions=10, created_ms=0, growths=(2, 4))
    assert record.partitions_before(index) == before
