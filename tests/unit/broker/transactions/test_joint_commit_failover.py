"""Bundles in a cluster of three: the next coordinator tells what the last one has decided, and no former one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.broker.three_brokers import SimulatedClusterBroker, ThreeBrokers, with_three_brokers
from tests.unit.broker.transactions.joint_commit_support import BUNDLE, claim, end_request, writing
from tests.unit.broker.transactions.test_transaction_failover import (
    NOT_NOW,
    Leave,
    Routed,
    both,
    stories,
    three_brokers,
    ways,
)
from tests.unit.broker.transactions.transaction_support import NEWER, Transactor

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.machines.transactions.joint_commits import joint_commit_owner_id, partitioning_id
from headrace.model.errors import CoordinatorNotAvailable
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.transactions import BundleMember, DescribeBundleRequest, EndBundleRequest

__all__ = ["three_brokers"]  # the fixture


class BundleRouted(Routed):
    def coordinator(self) -> SimulatedClusterBroker:
        return self._coordinator_of(joint_commit_owner_id(BUNDLE))

    def _coordinator_of(self, transactional_id: str) -> SimulatedClusterBroker:
        topic = next(iter(self.three_brokers)).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(partitioning_id(transactional_id)) % topic.partition_count)

    def _house(self, request: Any) -> SimulatedClusterBroker:
        if isinstance(request, EndBundleRequest | DescribeBundleRequest):
            return self.coordinator()
        return super()._house(request)


async def ready(three_brokers: ThreeBrokers, generation: int) -> tuple[BundleRouted, list[Transactor]]:
    """Two members that have written to all partitions, each led by another broker."""
    routed = BundleRouted(three_brokers)
    simulated_broker = next(iter(three_brokers))
    while (
        await simulated_broker.ask(FindCoordinatorRequest(key=joint_commit_owner_id(BUNDLE), key_type=1), 3)
    ).error_code:
        await simulated_broker.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = simulated_broker.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await simulated_broker.host.start(create, "create")
    for topic in ("t", TRANSACTION_STATE):
        await three_brokers.until_in_sync(topic)
    members = []
    for name, value in (("0", b"a"), ("1", b"b")):
        while True:  # the others may not have heard of the topic yet
            try:
                members.append(await writing(routed, name, value, 0, 1, 2, generation=generation))
                break
            except AssertionError:
                await asyncio.sleep(0.1)
    return routed, members


async def told(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer that is not "ask again"."""
    while (answer := await ask()).error_code in NOT_NOW:
        await asyncio.sleep(0.1)
    return answer


async def commit(routed: BundleRouted, sequence: int, *members: Transactor | BundleMember) -> bool:
    answer = await told(lambda: routed.ask(end_request(sequence, *members), 0))
    assert answer.error_code == 0
    return bool(answer.is_committed)


def leader_in(simulated_broker: SimulatedClusterBroker) -> int | None:
    topic = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE)
    index = java_hash(partitioning_id(joint_commit_owner_id(BUNDLE))) % topic.partition_count
    leader = simulated_broker.broker.catalogue.leader_node(TRANSACTION_STATE, index)
    return None if leader is None else leader.node_id


@both
@ways
@with_three_brokers
async def test_the_next_coordinator_knows_the_committed_sequence(
    three_brokers: ThreeBrokers, leave: Leave, generation: int
) -> None:
    routed, members = await ready(three_brokers, generation)
    assert await commit(routed, 4, *members)
    first = routed.coordinator()
    await leave(first)
    assert (await told(lambda: routed.ask(DescribeBundleRequest(BUNDLE), 0))).sequence == 4
    assert routed.coordinator() is not first
    assert await commit(routed, 4, *members)
    assert not await commit(routed, 4)
    assert [sorted(found.committed) for found in await stories(routed)] == [[b"a", b"b"]] * 3


@both
@ways
@with_three_brokers
async def test_the_next_coordinator_ends_all_members(
    three_brokers: ThreeBrokers, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed, members = await ready(three_brokers, generation)
    first = routed.coordinator()
    with monkeypatch.context() as mute:
        tell_none = asyncio.Event().wait
        mute.setattr(TransactionMarkers, "write_all", lambda *_: tell_none())
        routed.begin(end_request(0, *members), 0)
        await asyncio.sleep(0.5)
    await leave(first)
    assert await commit(routed, 0, *members)
    assert [sorted(found.committed) for found in await stories(routed)] == [[b"a", b"b"]] * 3
    assert [found.open for found in await stories(routed)] == [[]] * 3


@both
@with_three_brokers
async def test_a_former_coordinator_describes_no_bundle(three_brokers: ThreeBrokers, generation: int) -> None:
    """Its memory says that the members are open still, or that the sequence is the last: both may be untrue by now."""
    routed, members = await ready(three_brokers, generation)
    assert await commit(routed, 4)
    old = routed.coordinator()
    old.registry.disconnect(silently=True)
    others = [simulated_broker for simulated_broker in three_brokers if simulated_broker is not old]
    for simulated_broker in others:
        three_brokers.world.network.cut(simulated_broker.host.name, old.host.name)
    others[0].registry.expire(old.broker.cluster.membership.session)
    while leader_in(others[0]) in (None, old.node_id):
        await asyncio.sleep(0.1)
    stale = [
        old.begin(end_request(4), 0),
        old.begin(end_request(3), 0),
        old.begin(end_request(5, claim(members[0])), 0),
        old.begin(end_request(6, BundleMember(members[0].transactional_id, 99, 0)), 0),
        old.begin(end_request(-1, claim(members[0]), commit=False), 0),
    ]
    await asyncio.wait(stale, timeout=30)
    answers = [requested.result() for requested in stale if requested.done()]
    assert answers
    assert {answer.error_code for answer in answers} <= NOT_NOW
    three_brokers.world.network.heal()
    old.registry.reconnect()


@with_three_brokers
async def test_a_coordinator_that_may_have_been_replaced_describes_no_bundle(three_brokers: ThreeBrokers) -> None:
    routed, _ = await ready(three_brokers, NEWER)
    assert await commit(routed, 4)
    simulated_broker = routed.coordinator()
    simulated_broker.registry.disconnect()
    await asyncio.sleep(0.01)
    assert (await simulated_broker.ask(DescribeBundleRequest(BUNDLE), 0)).error_code == CoordinatorNotAvailable.code
    simulated_broker.registry.reconnect()
    await asyncio.sleep(0.1)
    assert (await simulated_broker.ask(DescribeBundleRequest(BUNDLE), 0)).sequence == 4
