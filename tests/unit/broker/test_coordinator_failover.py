"""Groups of a cluster whose coordinator goes away: another goes on with what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from tests.unit.broker.consumer_members import ConsumerMember
from tests.unit.broker.leads import log_of
from tests.unit.broker.members import GROUP, Member, commit, committed, describe, listed
from tests.unit.broker.trio import ClusterHouse, Trio, in_trio

from headrace.model.errors import CoordinatorNotAvailable, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

Leave = Callable[[ClusterHouse], Awaitable[None]]


@pytest.fixture
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    trio = Trio(getattr(request, "param", 1))
    trio.world.run(trio.open())
    yield trio
    trio.world.run(asyncio.sleep(1))  # whatever is under way shall end
    for house in trio:
        house.check()
    trio.world.close()


async def hand_over(house: ClusterHouse) -> None:
    await house.host.start(house.broker.cluster.hand_over(), "hand over")


async def stop(house: ClusterHouse) -> None:
    await hand_over(house)
    await house.close()


async def kill(house: ClusterHouse) -> None:
    house.kill()


async def cut_power(house: ClusterHouse) -> None:
    house.kill(keep_page_cache=False)


async def successor(trio: Trio, first: ClusterHouse) -> ClusterHouse:
    """Who coordinates the group after `first`."""
    while True:
        second = await trio.coordinator()
        await second.pass_time(0.1)
        if second is not first:
            return second


ways = pytest.mark.parametrize("leave", [hand_over, stop, kill, cut_power])


@in_trio
async def test_a_coordinator_that_may_have_been_replaced_tells_no_offsets(trio: Trio) -> None:
    """Its successor may know newer ones, and who hears of older ones, or of none, reads everything again."""
    house = await trio.coordinator()
    await house.make_topic("t")
    assert await commit(house, 5) == 0
    house.registry.disconnect()
    await asyncio.sleep(0.01)
    for version, request in (
        (7, OffsetFetchRequest(group_id=GROUP)),
        (9, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)])),
    ):
        answer = await house.ask(request, version)
        assert (answer.groups or [answer])[0].error_code == CoordinatorNotAvailable.code
    house.registry.reconnect()
    await asyncio.sleep(0.1)
    assert await committed(house) == (5, "")


@ways
@in_trio
async def test_offsets_and_members_are_known_to_the_next_coordinator(trio: Trio, leave: Leave) -> None:
    first = await trio.coordinator()
    await first.make_topic("t")
    member = Member(first)
    await member.enter()
    assert await member.commit(17, metadata="m") == 0
    await trio.until_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.house = await successor(trio, first)
    await second.pass_time(1)
    assert await committed(second) == (17, "m")
    assert await member.heartbeat() == 0, "it does not even have to join again"
    assert (await describe(second)).group_state == "Stable"


@ways
@in_trio
async def test_members_of_the_newer_protocol_go_on_too(trio: Trio, leave: Leave) -> None:
    first = await trio.coordinator()
    await first.make_topic("t", 2)
    member = ConsumerMember(first, "m", "t")
    assert (await member.beat()).error_code == 0
    assert await member.commit(5) == 0
    epoch, owned = member.epoch, member.owned
    await trio.until_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.house = await successor(trio, first)
    await second.pass_time(1)
    assert (await member.beat()).error_code == 0
    assert (member.epoch, member.owned) == (epoch, owned)


@in_trio
async def test_the_former_coordinator_tells_everybody_to_look_for_the_next(trio: Trio) -> None:
    first = await trio.coordinator()
    await first.make_topic("t")
    member, other = Member(first), Member(first)
    await member.enter()
    joining = other.begin_join(3)
    await first.pass_time(1)
    await hand_over(first)
    assert (await joining).error_code == NotCoordinator.code
    assert await member.heartbeat() == NotCoordinator.code
    assert await commit(first, 18) == NotCoordinator.code
    assert await listed(first) == {}
    second = await successor(trio, first)
    await second.pass_time(1)
    assert await listed(second) == {GROUP: "Stable"}


@in_trio
async def test_nothing_is_written_that_could_not_be_committed(trio: Trio) -> None:
    """There are fewer replicas in sync than the topic asks for: who commits is told so at once, not after a wait."""
    first = await trio.coordinator()
    await first.make_topic("t")
    assert await commit(first, 1) == 0
    await trio.until_in_sync(CONSUMER_OFFSETS)
    change = first.broker.catalogue.change_configs(
        CONSUMER_OFFSETS, lambda configs: {**configs, "min.insync.replicas": "3"}
    )
    await first.host.start(change, "change")
    other = next(house for house in trio if house is not first)
    other.kill()
    partition = log_of(first, GROUP)
    while len(first.broker.catalogue.place(CONSUMER_OFFSETS, partition.index).isr) == 3:
        await first.pass_time(0.1)
    end_offset = partition.log.end_offset
    assert await commit(first, 2) == CoordinatorNotAvailable.code
    groups = first.broker.coordinator.of(GROUP)
    with pytest.raises(CoordinatorNotAvailable):
        await groups.commit_pending([groups.offsets.commit(GROUP, "t", 0, 3, now_ms=0)], 1, 0)
    assert partition.log.end_offset == end_offset
    assert await committed(first) == (1, "")
    await other.open()
    await trio.until_in_sync(CONSUMER_OFFSETS)
    assert await commit(first, 4) == 0


class Committer:
    """Commits higher and higher offsets wherever the coordinator is, and looks what became of them."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio
        self.sent = self.acknowledged = self.seen = 0

    async def step(self) -> None:
        with suppress(TimeoutError):  # of a broker that has died meanwhile there is no answer
            async with asyncio.timeout(1):
                house = await self.trio.coordinator()
                self.sent += 1
                sent = self.sent
                if await commit(house, sent) == 0:
                    self.acknowledged = sent
                await house.pass_time(0.02)
                with suppress(AssertionError):  # it must be asked elsewhere, or later
                    self.seen = (await committed(house))[0]
                    return
        self.seen = self.acknowledged

    def check(self) -> None:
        assert self.acknowledged <= self.seen <= self.sent


@pytest.mark.parametrize("trio", range(1, 4), indirect=True)
@in_trio
async def test_no_offset_that_was_acknowledged_is_ever_taken_back(trio: Trio) -> None:
    await (await trio.coordinator()).make_topic("t")
    committer = Committer(trio)
    disturbing = asyncio.create_task(_disturb(trio))
    while not disturbing.done():
        await committer.step()
        committer.check()
    await disturbing
    await committer.step()
    committer.check()
    assert committer.acknowledged > 100


async def _disturb(trio: Trio) -> None:
    for leave in (stop, kill, cut_power, kill, stop, cut_power):
        await trio.until_in_sync(CONSUMER_OFFSETS)
        house = await trio.coordinator()
        await house.pass_time(0.3)
        await leave(house)
        await next(iter(trio)).pass_time(1)
        await house.open()
