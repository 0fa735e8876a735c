"""Bundles in a cluster of three: the next coordinator tells what the last one has decided, and no former one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.broker.bundling import BUNDLE, claim, end_request, writing
from tests.unit.broker.test_transaction_failover import (
    NOT_NOW,
    Leave,
    Routed,
    both,
    stories,
    trio,
    ways,
)
from tests.unit.broker.transacting import NEWER, Transactor
from tests.unit.broker.trio import ClusterHouse, Trio, in_trio

from headrace.broker.state_log import java_hash
from headrace.broker.transaction_markers import TransactionMarkers
from headrace.machines.bundles import owner_id, placing
from headrace.model.errors import CoordinatorNotAvailable
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.describe_bundle import DescribeBundleRequest
from headrace.wire.messages.end_bundle import BundleMember, EndBundleRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest

__all__ = ["trio"]  # the fixture


class BundleRouted(Routed):
    def coordinator(self) -> ClusterHouse:
        return self._coordinator_of(owner_id(BUNDLE))

    def _coordinator_of(self, transactional_id: str) -> ClusterHouse:
        topic = next(iter(self.trio)).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(placing(transactional_id)) % topic.partition_count)

    def _house(self, request: Any) -> ClusterHouse:
        if isinstance(request, EndBundleRequest | DescribeBundleRequest):
            return self.coordinator()
        return super()._house(request)


async def ready(trio: Trio, generation: int) -> tuple[BundleRouted, list[Transactor]]:
    """Two members that have written to all partitions, each led by another broker."""
    routed = BundleRouted(trio)
    house = next(iter(trio))
    while (await house.ask(FindCoordinatorRequest(key=owner_id(BUNDLE), key_type=1), 3)).error_code:
        await house.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = house.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await house.host.start(create, "create")
    for topic in ("t", TRANSACTION_STATE):
        await trio.until_in_sync(topic)
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


def leader_in(house: ClusterHouse) -> int | None:
    topic = house.broker.catalogue.topic(TRANSACTION_STATE)
    index = java_hash(placing(owner_id(BUNDLE))) % topic.partition_count
    leader = house.broker.catalogue.leader_node(TRANSACTION_STATE, index)
    return None if leader is None else leader.node_id


@both
@ways
@in_trio
async def test_what_was_committed_is_told_by_the_next_coordinator(trio: Trio, leave: Leave, generation: int) -> None:
    routed, members = await ready(trio, generation)
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
@in_trio
async def test_all_members_are_ended_by_the_next_coordinator(
    trio: Trio, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed, members = await ready(trio, generation)
    first = routed.coordinator()
    with monkeypatch.context() as mute:
        tell_none = asyncio.Event().wait
        mute.setattr(TransactionMarkers, "tell_all", lambda *_: tell_none())
        routed.begin(end_request(0, *members), 0)
        await asyncio.sleep(0.5)
    await leave(first)
    assert await commit(routed, 0, *members)
    assert [sorted(found.committed) for found in await stories(routed)] == [[b"a", b"b"]] * 3
    assert [found.open for found in await stories(routed)] == [[]] * 3


@both
@in_trio
async def test_a_former_coordinator_that_has_not_heard_of_it_tells_nothing(trio: Trio, generation: int) -> None:
    """Its memory says that the members are open still, or that the sequence is the last: both may be untrue by now."""
    routed, members = await ready(trio, generation)
    assert await commit(routed, 4)
    old = routed.coordinator()
    old.registry.disconnect(silently=True)
    others = [house for house in trio if house is not old]
    for house in others:
        trio.world.network.cut(house.host.name, old.host.name)
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
    answers = [asked.result() for asked in stale if asked.done()]
    assert answers
    assert {answer.error_code for answer in answers} <= NOT_NOW
    trio.world.network.heal()
    old.registry.reconnect()


@in_trio
async def test_a_coordinator_that_may_have_been_replaced_tells_no_sequence(trio: Trio) -> None:
    routed, _ = await ready(trio, NEWER)
    assert await commit(routed, 4)
    house = routed.coordinator()
    house.registry.disconnect()
    await asyncio.sleep(0.01)
    assert (await house.ask(DescribeBundleRequest(BUNDLE), 0)).error_code == CoordinatorNotAvailable.code
    house.registry.reconnect()
    await asyncio.sleep(0.1)
    assert (await house.ask(DescribeBundleRequest(BUNDLE), 0)).sequence == 4
