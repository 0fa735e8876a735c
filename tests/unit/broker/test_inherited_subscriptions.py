"""Partitions that are added to a topic: its subscriptions begin at offset 0 there, whoever leads what."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.unit.broker.asking import produce
from tests.unit.broker.house import House
from tests.unit.broker.queueing import ACK, CREATE, LATEST, Got, Member, alter, describe, got, subscribe, values_of
from tests.unit.broker.share_members import ShareMember, taken
from tests.unit.broker.town import Town, in_town

from headrace.broker.acks_log import AcksLead
from headrace.broker.inherited_subscriptions import InheritedSubscriptions
from headrace.broker.partition import Partition
from headrace.model.errors import NotLeader
from headrace.registry.topics import TopicRecord

ACKS = "__acks.jobs"
LOADING = 14


async def grow(house: House, total: int) -> None:
    await house.host.start(house.broker.catalogue.add_partitions("jobs", total), "grow")


async def lease_from(member: Member, partition: int) -> list[Got]:
    """Lease as a client does, which tries again after a retriable error."""
    for _ in range(100):
        responses = await member.ask(wait_ms=1000, partitions=[partition])
        if not any(response.error_code for response in responses):
            return got(responses)
        await asyncio.sleep(0.1)
    raise AssertionError(responses)


async def test_a_subscription_begins_with_the_first_message_of_a_partition_that_is_added(house: House) -> None:
    await subscribe(house)
    await grow(house, 3)
    await produce(house, "jobs", b"a", b"b", partition=1)
    await produce(house, "jobs", b"c", partition=2)
    member = Member(house)
    assert values_of(await member.lease(partitions=[1])) == [b"a", b"b"]
    assert values_of(await member.lease(partitions=[2], must_exist=True)) == [b"c"], "as streams and webhooks lease"


async def test_so_does_a_share_group_whose_reset_is_latest(house: House) -> None:
    """As in Kafka (KAFKA-20742): `share.auto.offset.reset` is for topics that the group does not know."""
    await house.make_topic("jobs")
    member = ShareMember(house)
    await member.fetch(0)
    await grow(house, 2)
    await produce(house, "jobs", b"a", partition=1)
    assert [one.value for one in taken(await member.fetch(1))] == [b"a"]


async def test_a_subscription_that_is_created_later_begins_as_its_configuration_says(house: House) -> None:
    await subscribe(house)
    await grow(house, 2)
    await produce(house, "jobs", b"old", partition=1)
    assert await Member(house, subscription="latecomers").lease(partitions=[1]) == []
    await produce(house, "jobs", b"new", partition=1)
    assert values_of(await Member(house, subscription="latecomers").lease(partitions=[1])) == [b"new"]


async def test_a_partition_that_the_topic_was_created_with_inherits_nothing(house: House) -> None:
    await house.make_topic("jobs", 2)
    await produce(house, "jobs", b"old", partition=1)
    assert (await alter(house, CREATE, offset=LATEST)).error_code == 0
    assert await Member(house).lease(partitions=[1]) == []


async def test_what_a_partition_inherited_and_what_was_settled_there_survive_a_restart(house: House) -> None:
    await subscribe(house)
    await grow(house, 2)
    await produce(house, "jobs", b"a", b"b", partition=1)
    member = Member(house)
    (message,) = await member.lease(1, partitions=[1])
    assert await member.settle([message], ACK) == [0]
    house.kill(keep_page_cache=False)
    await house.open()
    assert values_of(await member.lease(partitions=[1])) == [b"b"]


async def test_a_topic_without_subscriptions_has_none_in_what_is_added(house: House) -> None:
    await house.make_topic("jobs")
    await grow(house, 2)
    await produce(house, "jobs", b"a", partition=1)
    assert await describe(house, partition=1) == []


@in_town()
async def test_a_partition_serves_nobody_until_the_leaders_of_the_older_ones_have_responded(town: Town) -> None:
    await town.make_topic("jobs", (1,))
    await alter(town[1], CREATE)
    town[1].kill()
    adding = town[2].broker.catalogue.add_partitions("jobs", 2, assignment=((2,),))
    await town[2].host.start(adding, "grow")
    await produce(town[2], "jobs", b"a", partition=1)
    (response,) = await Member(town[2]).ask(partitions=[1])
    assert response.error_code == LOADING
    await town.open(1)
    assert values_of(await lease_from(Member(town[2]), 1)) == [b"a"]


@in_town()
async def test_the_next_leader_inherits_if_the_first_one_dies_before_it_could(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await town.make_topic("jobs", (1, 3))
    await alter(town[1], CREATE)

    async def die(_self: InheritedSubscriptions, acks: AcksLead, _older: int) -> list[str]:
        await asyncio.Event().wait()
        raise NotLeader(acks.partition.topic)

    with monkeypatch.context() as patch:
        patch.setattr(InheritedSubscriptions, "find", die)
        adding = town[1].broker.catalogue.add_partitions("jobs", 2, assignment=((2, 3),))
        await town[1].host.start(adding, "grow")
        await produce(town[2], "jobs", b"a", partition=1)
        await town.until_in_sync("jobs", index=1)
        await town.until_in_sync(ACKS, index=1)
        town[2].kill()
    await town.until_led("jobs", 3, index=1)
    await town.until_led(ACKS, 3, index=1)
    assert values_of(await lease_from(Member(town[3]), 1)) == [b"a"]


@in_town()
async def test_what_was_settled_in_an_added_partition_stays_settled_when_its_leader_changes(town: Town) -> None:
    await town.make_topic("jobs", (1, 2, 3))
    await alter(town[1], CREATE)
    adding = town[1].broker.catalogue.add_partitions("jobs", 2, assignment=((2, 3, 1),))
    await town[1].host.start(adding, "grow")
    await produce(town[2], "jobs", b"a", b"b", partition=1)
    member = Member(town[2])
    (message, _) = await lease_from(member, 1)
    assert await member.settle([message], ACK) == [0]
    await town.until_in_sync("jobs", index=1)
    await town.until_in_sync(ACKS, index=1)
    town[2].kill()
    successor = await town.until_led(ACKS, index=1)
    assert values_of(await lease_from(Member(successor), 1)) == [b"b"]


# One query for many


class Asked:
    """Counts the queries, which end when they are told to."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()

    async def names(self, places: object) -> frozenset[str]:
        self.count += 1
        await self.gate.wait()
        return frozenset({f"query {self.count}"})


async def test_loads_that_wait_at_the_same_time_share_a_query_that_began_after_them(house: House) -> None:
    await subscribe(house)
    partition = house.partition(ACKS)
    asked = Asked()
    inherited = InheritedSubscriptions(asked.names)
    loads = [asyncio.ensure_future(inherited.find(_acks(partition), 1)) for _ in range(5)]
    await asyncio.sleep(0)
    asked.gate.set()
    assert await asyncio.gather(*loads) == [["query 1"], *[["query 2"]] * 4]
    assert asked.count == 2


def _acks(partition: Partition) -> AcksLead:
    return AcksLead(partition, None, lambda _: (), lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("index", "before"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 4)])
def test_a_topic_knows_how_many_partitions_it_had_before_each_was_added(index: int, before: int) -> None:
    record = TopicRecord(name="t", id=UUID(int=1), partitions=10, created_ms=0, growths=(2, 4))
    assert record.partitions_before(index) == before
