"""Subscriptions where the leader changes: what was acked stays acked, and what was leased comes back."""

from __future__ import annotations

import asyncio

from tests.unit.broker.asking import produce
from tests.unit.broker.queueing import ACK, CREATE, NACK, Got, Member, alter, describe, got, values_of
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

ACKS = "__acks.jobs"
NOT_LEADER = 6
NOT_LEASED = 121


async def queue(town: Town, **configs: str) -> ClusterHouse:
    """A topic on all brokers with a subscription, and everybody in sync; its leader."""
    await town.make_topic("jobs", by=None, **configs)
    leader = await town.until_led("jobs")
    assert (await alter(leader, CREATE)).error_code == 0
    await town.until_in_sync("jobs")
    await town.until_in_sync(ACKS)
    return leader


async def serving(town: Town, but: int | None = None) -> ClusterHouse:
    """Whoever leads both the partition and its acks, and knows."""

    def is_served() -> bool:
        leader = town.record("jobs").leader
        return (
            leader not in (-1, but)
            and town.record(ACKS).leader == leader
            and town[leader].is_open
            and town.leads(leader, "jobs")
            and town.leads(leader, ACKS)
        )

    await town.until(is_served)
    return town.leader("jobs")


async def lease_some(member: Member, count: int = 100) -> list[Got]:
    """As a client does it: try again while nobody can say."""
    while True:
        answers = await member.ask(count, wait_ms=1000)
        if not any(answer.error_code for answer in answers):
            return got(answers)
        await asyncio.sleep(0.1)


@in_town()
async def test_a_leader_that_may_have_been_replaced_grants_no_leases(town: Town) -> None:
    """What was settled with its successor would be delivered again."""
    leader = await queue(town)
    await produce(leader, "jobs", b"a", b"b")
    member = Member(leader)
    (message,) = await member.lease(1)
    leader.registry.disconnect()
    await asyncio.sleep(0.01)
    assert [answer.error_code for answer in await member.ask(1)] == [NOT_LEADER]
    assert await member.settle([message], ACK) == [0], "a settle counts only when it is committed"
    leader.registry.reconnect()
    await asyncio.sleep(0.1)
    assert values_of(await lease_some(member)) == [b"b"]


@in_town()
async def test_when_the_leader_dies_acks_stay_and_leases_come_back(town: Town) -> None:
    leader = await queue(town)
    await produce(leader, "jobs", b"a", b"b", b"c", b"d")
    member = Member(leader)
    messages = await member.lease(3)
    await member.ack([messages[1]])
    assert await member.settle([messages[2]], NACK, delay_ms=60_000) == [0]
    leader.kill(keep_page_cache=False)
    successor = await serving(town, but=leader.node_id)
    member = Member(successor)
    again = await lease_some(member)
    assert [(one.value, one.attempt) for one in again] == [(b"a", 1), (b"d", 1)]
    assert await member.settle([messages[0]]) == [NOT_LEASED], "that lease ended with its leader"
    await asyncio.sleep(61)
    assert [(one.value, one.attempt) for one in await lease_some(member) if one.value == b"c"] == [(b"c", 2)]


@in_town()
async def test_a_lead_that_is_handed_over_takes_its_subscriptions_along(town: Town) -> None:
    leader = await queue(town)
    await produce(leader, "jobs", b"a", b"b")
    member = Member(leader)
    first, _ = await member.lease()
    polling = asyncio.create_task(member.ask(wait_ms=60_000))
    await asyncio.sleep(0.1)
    other = next(node_id for node_id in town.record("jobs").replicas if node_id != leader.node_id)
    await town.move_lead("jobs", other)
    assert {answer.error_code for answer in await polling} == {NOT_LEADER}
    successor = await serving(town, but=leader.node_id)
    assert successor.node_id == other
    assert (await member.settle([first]))[0] in (NOT_LEADER, NOT_LEASED)
    again = Member(successor)
    assert values_of(await lease_some(again)) == [b"a", b"b"]


@in_town()
async def test_who_leads_only_one_of_the_two_serves_nobody(town: Town) -> None:
    leader = await queue(town)
    await produce(leader, "jobs", b"a")
    other = next(node_id for node_id in town.record("jobs").replicas if node_id != leader.node_id)
    subscriptions = leader.broker.subscriptions.of("jobs", 0)
    await town.move_lead("jobs", other)
    (answer,) = await Member(leader).ask()
    assert answer.error_code == NOT_LEADER
    await serving(town, but=leader.node_id)
    (answer,) = await Member(leader).ask()
    assert answer.error_code == NOT_LEADER
    assert subscriptions._closed is not None


@in_town()
async def test_a_settle_is_answered_when_the_followers_have_it(town: Town) -> None:
    leader = await queue(town, min_insync_replicas="2")
    await produce(leader, "jobs", b"a")
    member = Member(leader)
    messages = await member.lease()
    for node_id in town.houses:
        if node_id != leader.node_id:
            town[node_id].host.disk.delay_seconds = (0.5, 0.5)
    settling = asyncio.create_task(member.settle(messages))
    await asyncio.sleep(0.3)
    assert not settling.done()
    assert await settling == [0]


@in_town()
async def test_whatever_was_acked_before_any_of_many_failovers_never_comes_back(town: Town) -> None:
    await queue(town)
    acked: set[bytes] = set()
    for turn in range(4):
        leader = await serving(town)
        await produce(leader, "jobs", *(b"%d.%d" % (turn, number) for number in range(10)))
        member = Member(leader)
        messages = await lease_some(member, 15)
        assert not acked & set(values_of(messages))
        await member.ack(messages[::2])
        acked |= set(values_of(messages[::2]))
        leader.kill(keep_page_cache=turn % 2 == 0)
        await serving(town, but=leader.node_id)
        await town.open(leader.node_id)
        await town.until_in_sync("jobs")
        await town.until_in_sync(ACKS)
    last = await serving(town)
    rest = await lease_some(Member(last), 1000)
    everything = {b"%d.%d" % (turn, number) for turn in range(4) for number in range(10)}
    assert set(values_of(rest)) == everything - acked
    assert [one.backlog for one in await describe(last)] == [len(everything) - len(acked)]
