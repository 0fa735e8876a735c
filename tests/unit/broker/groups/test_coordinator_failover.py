"""Groups of a cluster whose coordinator goes away: another goes on with what was acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, commit, committed, describe, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember
from tests.unit.broker.leadership_changes import log_of
from tests.unit.broker.three_brokers import SimulatedClusterBroker, ThreeBrokers, with_three_brokers

from headrace.model.errors import CoordinatorNotAvailable, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup

Leave = Callable[[SimulatedClusterBroker], Awaitable[None]]


@pytest.fixture
def three_brokers(request: pytest.FixtureRequest) -> Iterator[ThreeBrokers]:
    three_brokers = ThreeBrokers(getattr(request, "param", 1))
    three_brokers.world.run(three_brokers.open())
    yield three_brokers
    three_brokers.world.run(asyncio.sleep(1))  # whatever is under way shall end
    for simulated_broker in three_brokers:
        simulated_broker.check()
    three_brokers.world.close()


async def transfer_leadership(simulated_broker: SimulatedClusterBroker) -> None:
    await simulated_broker.host.start(simulated_broker.broker.cluster.transfer_leadership(), "hand over")


async def stop(simulated_broker: SimulatedClusterBroker) -> None:
    await transfer_leadership(simulated_broker)
    await simulated_broker.close()


async def kill(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill()


async def cut_power(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill(keep_page_cache=False)


async def successor(three_brokers: ThreeBrokers, first: SimulatedClusterBroker) -> SimulatedClusterBroker:
    """Who coordinates the group after `first`."""
    while True:
        second = await three_brokers.coordinator()
        await second.pass_time(0.1)
        if second is not first:
            return second


ways = pytest.mark.parametrize("leave", [transfer_leadership, stop, kill, cut_power])


@with_three_brokers
async def test_a_coordinator_that_may_have_been_replaced_returns_no_offsets(three_brokers: ThreeBrokers) -> None:
    """Its successor may know newer ones, and who hears of older ones, or of none, reads everything again."""
    simulated_broker = await three_brokers.coordinator()
    await simulated_broker.make_topic("t")
    assert await commit(simulated_broker, 5) == 0
    simulated_broker.registry.disconnect()
    await asyncio.sleep(0.01)
    for version, request in (
        (7, OffsetFetchRequest(group_id=GROUP)),
        (9, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)])),
    ):
        answer = await simulated_broker.ask(request, version)
        assert (answer.groups or [answer])[0].error_code == CoordinatorNotAvailable.code
    simulated_broker.registry.reconnect()
    await asyncio.sleep(0.1)
    assert await committed(simulated_broker) == (5, "")


@ways
@with_three_brokers
async def test_the_next_coordinator_knows_offsets_and_members(three_brokers: ThreeBrokers, leave: Leave) -> None:
    first = await three_brokers.coordinator()
    await first.make_topic("t")
    member = ClassicMember(first)
    await member.enter()
    assert await member.commit(17, metadata="m") == 0
    await three_brokers.until_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.simulated_broker = await successor(three_brokers, first)
    await second.pass_time(1)
    assert await committed(second) == (17, "m")
    assert await member.heartbeat() == 0, "it does not even have to join again"
    assert (await describe(second)).group_state == "Stable"


@ways
@with_three_brokers
async def test_members_of_the_consumer_protocol_continue_too(three_brokers: ThreeBrokers, leave: Leave) -> None:
    first = await three_brokers.coordinator()
    await first.make_topic("t", 2)
    member = ConsumerMember(first, "m", "t")
    assert (await member.beat()).error_code == 0
    assert await member.commit(5) == 0
    epoch, owned = member.epoch, member.owned
    await three_brokers.until_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.simulated_broker = await successor(three_brokers, first)
    await second.pass_time(1)
    assert (await member.beat()).error_code == 0
    assert (member.epoch, member.owned) == (epoch, owned)


@with_three_brokers
async def test_the_former_coordinator_responds_with_not_coordinator(three_brokers: ThreeBrokers) -> None:
    first = await three_brokers.coordinator()
    await first.make_topic("t")
    member, other = ClassicMember(first), ClassicMember(first)
    await member.enter()
    joining = other.begin_join(3)
    await first.pass_time(1)
    await transfer_leadership(first)
    assert (await joining).error_code == NotCoordinator.code
    assert await member.heartbeat() == NotCoordinator.code
    assert await commit(first, 18) == NotCoordinator.code
    assert await listed(first) == {}
    second = await successor(three_brokers, first)
    await second.pass_time(1)
    assert await listed(second) == {GROUP: "Stable"}


@with_three_brokers
async def test_a_write_that_could_not_be_committed_is_rejected(three_brokers: ThreeBrokers) -> None:
    """There are fewer replicas in sync than the topic asks for: who commits is told so at once, not after a wait."""
    first = await three_brokers.coordinator()
    await first.make_topic("t")
    assert await commit(first, 1) == 0
    await three_brokers.until_in_sync(CONSUMER_OFFSETS)
    change = first.broker.catalogue.change_configs(
        CONSUMER_OFFSETS, lambda configs: {**configs, "min.insync.replicas": "3"}
    )
    await first.host.start(change, "change")
    other = next(simulated_broker for simulated_broker in three_brokers if simulated_broker is not first)
    other.kill()
    partition = log_of(first, GROUP)
    while len(first.broker.catalogue.partition_record(CONSUMER_OFFSETS, partition.index).isr) == 3:
        await first.pass_time(0.1)
    end_offset = partition.log.end_offset
    assert await commit(first, 2) == CoordinatorNotAvailable.code
    groups = first.broker.coordinator.of(GROUP)
    with pytest.raises(CoordinatorNotAvailable):
        await groups.commit_pending([groups.offsets.commit(GROUP, "t", 0, 3, now_ms=0)], 1, 0)
    assert partition.log.end_offset == end_offset
    assert await committed(first) == (1, "")
    await other.open()
    await three_brokers.until_in_sync(CONSUMER_OFFSETS)
    assert await commit(first, 4) == 0


class Committer:
    """Commits higher and higher offsets wherever the coordinator is, and looks what became of them."""

    def __init__(self, three_brokers: ThreeBrokers) -> None:
        self.three_brokers = three_brokers
        self.sent = self.acknowledged = self.seen = 0

    async def step(self) -> None:
        with suppress(TimeoutError):  # of a broker that has died meanwhile there is no answer
            async with asyncio.timeout(1):
                simulated_broker = await self.three_brokers.coordinator()
                self.sent += 1
                sent = self.sent
                if await commit(simulated_broker, sent) == 0:
                    self.acknowledged = sent
                await simulated_broker.pass_time(0.02)
                with suppress(AssertionError):  # it must be asked elsewhere, or later
                    self.seen = (await committed(simulated_broker))[0]
                    return
        self.seen = self.acknowledged

    def check(self) -> None:
        assert self.acknowledged <= self.seen <= self.sent


@pytest.mark.parametrize("three_brokers", range(1, 4), indirect=True)
@with_three_brokers
async def test_an_acknowledged_offset_is_never_reverted(three_brokers: ThreeBrokers) -> None:
    await (await three_brokers.coordinator()).make_topic("t")
    committer = Committer(three_brokers)
    disturbing = asyncio.create_task(_disturb(three_brokers))
    while not disturbing.done():
        await committer.step()
        committer.check()
    await disturbing
    await committer.step()
    committer.check()
    assert committer.acknowledged > 100


async def _disturb(three_brokers: ThreeBrokers) -> None:
    for leave in (stop, kill, cut_power, kill, stop, cut_power):
        await three_brokers.until_in_sync(CONSUMER_OFFSETS)
        simulated_broker = await three_brokers.coordinator()
        await simulated_broker.pass_time(0.3)
        await leave(simulated_broker)
        await next(iter(three_brokers)).pass_time(1)
        await simulated_broker.open()
