"""Coordinator failover of groups: the next coordinator continues from the acknowledged state."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, commit, committed, describe, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember
from tests.unit.broker.leadership_changes import log_of
from tests.unit.broker.simulated_cluster import (
    Leave,
    SimulatedCluster,
    cut_power,
    in_simulated_cluster,
    kill,
    stop,
    transfer_leadership,
)

from headrace.model.errors import CoordinatorNotAvailable, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup

each_way_to_leave = pytest.mark.parametrize("leave", [transfer_leadership, stop, kill, cut_power])


@in_simulated_cluster()
async def test_a_coordinator_that_may_have_been_replaced_returns_no_offsets(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Its successor may know newer offsets. A client that gets older ones, or none, would consume records again."""
    simulated_broker = await simulated_cluster.wait_for_coordinator()
    await simulated_broker.create_topic("t")
    assert await commit(simulated_broker, 5) == 0
    simulated_broker.registry.disconnect()
    await asyncio.sleep(0.01)
    for version, request in (
        (7, OffsetFetchRequest(group_id=GROUP)),
        (9, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)])),
    ):
        response = await simulated_broker.send(request, version)
        assert (response.groups or [response])[0].error_code == CoordinatorNotAvailable.code
    simulated_broker.registry.reconnect()
    await asyncio.sleep(0.1)
    assert await committed(simulated_broker) == (5, "")


@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_coordinator_knows_offsets_and_members(
    simulated_cluster: SimulatedCluster, leave: Leave
) -> None:
    first = await simulated_cluster.wait_for_coordinator()
    await first.create_topic("t")
    member = ClassicMember(first)
    await member.enter()
    assert await member.commit(17, metadata="m") == 0
    await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.simulated_broker = await simulated_cluster.wait_for_new_coordinator(first)
    await second.pass_time(1)
    assert await committed(second) == (17, "m")
    assert await member.heartbeat() == 0, "it need not rejoin"
    assert (await describe(second)).group_state == "Stable"


@each_way_to_leave
@in_simulated_cluster()
async def test_members_of_the_consumer_protocol_continue_too(simulated_cluster: SimulatedCluster, leave: Leave) -> None:
    first = await simulated_cluster.wait_for_coordinator()
    await first.create_topic("t", 2)
    member = ConsumerMember(first, "m", "t")
    assert (await member.beat()).error_code == 0
    assert await member.commit(5) == 0
    epoch, owned = member.epoch, member.owned
    await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
    await leave(first)
    second = member.simulated_broker = await simulated_cluster.wait_for_new_coordinator(first)
    await second.pass_time(1)
    assert (await member.beat()).error_code == 0
    assert (member.epoch, member.owned) == (epoch, owned)


@in_simulated_cluster()
async def test_the_former_coordinator_responds_with_not_coordinator(simulated_cluster: SimulatedCluster) -> None:
    first = await simulated_cluster.wait_for_coordinator()
    await first.create_topic("t")
    member, other = ClassicMember(first), ClassicMember(first)
    await member.enter()
    joining = other.begin_join(3)
    await first.pass_time(1)
    await transfer_leadership(first)
    assert (await joining).error_code == NotCoordinator.code
    assert await member.heartbeat() == NotCoordinator.code
    assert await commit(first, 18) == NotCoordinator.code
    assert await listed(first) == {}
    second = await simulated_cluster.wait_for_new_coordinator(first)
    await second.pass_time(1)
    assert await listed(second) == {GROUP: "Stable"}


@in_simulated_cluster()
async def test_a_write_that_could_not_be_committed_is_rejected(simulated_cluster: SimulatedCluster) -> None:
    """With fewer in-sync replicas than min.insync.replicas, the commit fails at once, not after a timeout."""
    first = await simulated_cluster.wait_for_coordinator()
    await first.create_topic("t")
    assert await commit(first, 1) == 0
    await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
    change = first.broker.catalogue.change_configs(
        CONSUMER_OFFSETS, lambda configs: {**configs, "min.insync.replicas": "3"}
    )
    await first.host.start(change, "change")
    other = next(simulated_broker for simulated_broker in simulated_cluster.up if simulated_broker is not first)
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
    await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
    assert await commit(first, 4) == 0


class Committer:
    """Commits increasing offsets at the current coordinator, and reads the committed offset after each."""

    def __init__(self, simulated_cluster: SimulatedCluster) -> None:
        self.simulated_cluster = simulated_cluster
        self.sent = self.acknowledged = self.seen = 0

    async def step(self) -> None:
        with suppress(TimeoutError):  # a broker that was killed sends no response
            async with asyncio.timeout(1):
                simulated_broker = await self.simulated_cluster.wait_for_coordinator()
                self.sent += 1
                sent = self.sent
                if await commit(simulated_broker, sent) == 0:
                    self.acknowledged = sent
                await simulated_broker.pass_time(0.02)
                with suppress(AssertionError):  # another broker coordinates the group, or none yet
                    self.seen = (await committed(simulated_broker))[0]
                    return
        self.seen = self.acknowledged

    def check(self) -> None:
        assert self.acknowledged <= self.seen <= self.sent


@in_simulated_cluster(seeds=range(1, 4))
async def test_an_acknowledged_offset_is_never_reverted(simulated_cluster: SimulatedCluster) -> None:
    await (await simulated_cluster.wait_for_coordinator()).create_topic("t")
    committer = Committer(simulated_cluster)
    stopping = asyncio.create_task(_stop_coordinators(simulated_cluster))
    while not stopping.done():
        await committer.step()
        committer.check()
    await stopping
    await committer.step()
    committer.check()
    assert committer.acknowledged > 100


async def _stop_coordinators(simulated_cluster: SimulatedCluster) -> None:
    for leave in (stop, kill, cut_power, kill, stop, cut_power):
        await simulated_cluster.wait_until_all_in_sync(CONSUMER_OFFSETS)
        simulated_broker = await simulated_cluster.wait_for_coordinator()
        await simulated_broker.pass_time(0.3)
        await leave(simulated_broker)
        await next(simulated_cluster.up).pass_time(1)
        await simulated_broker.open()
