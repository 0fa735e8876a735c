"""Joint commits in a cluster of three: the next coordinator knows the decision, and a former one describes none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.broker.simulated_cluster import Leave, SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster
from tests.unit.broker.transactions.joint_commit_support import BUNDLE, claim, end_request, writing
from tests.unit.broker.transactions.test_transaction_failover import (
    RETRIABLE_CODES,
    RequestRouter,
    committed_contents,
    each_generation,
    each_way_to_leave,
)
from tests.unit.broker.transactions.transaction_support import NEWER, Transactor

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.machines.transactions.joint_commits import joint_commit_owner_id, partitioning_id
from headrace.model.errors import CoordinatorNotAvailable
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.transactions import BundleMember, DescribeBundleRequest, EndBundleRequest


class JointCommitRouter(RequestRouter):
    def coordinator(self) -> SimulatedClusterBroker:
        return self._coordinator_of(joint_commit_owner_id(BUNDLE))

    def _coordinator_of(self, transactional_id: str) -> SimulatedClusterBroker:
        topic = next(self.simulated_cluster.up).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(partitioning_id(transactional_id)) % topic.partition_count)

    def _broker_for(self, request: Any) -> SimulatedClusterBroker:
        if isinstance(request, EndBundleRequest | DescribeBundleRequest):
            return self.coordinator()
        return super()._broker_for(request)


async def create_topic_and_members(
    simulated_cluster: SimulatedCluster, generation: int
) -> tuple[JointCommitRouter, list[Transactor]]:
    """Create a topic with a leader on each broker, and two members that have written to all its partitions."""
    router = JointCommitRouter(simulated_cluster)
    simulated_broker = next(simulated_cluster.up)
    while (
        await simulated_broker.send(FindCoordinatorRequest(key=joint_commit_owner_id(BUNDLE), key_type=1), 3)
    ).error_code:
        await simulated_broker.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = simulated_broker.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await simulated_broker.host.start(create, "create")
    for topic in ("t", TRANSACTION_STATE):
        await simulated_cluster.wait_until_all_in_sync(topic)
    members = []
    for name, value in (("0", b"a"), ("1", b"b")):
        while True:  # the other brokers may not know the topic yet
            try:
                members.append(await writing(router, name, value, 0, 1, 2, generation=generation))
                break
            except AssertionError:
                await asyncio.sleep(0.1)
    return router, members


async def retry(send: Callable[[], Awaitable[Any]]) -> Any:
    """Send the request until the error code of the response is not retriable."""
    while (response := await send()).error_code in RETRIABLE_CODES:
        await asyncio.sleep(0.1)
    return response


async def commit(router: JointCommitRouter, sequence: int, *members: Transactor | BundleMember) -> bool:
    response = await retry(lambda: router.send(end_request(sequence, *members), 0))
    assert response.error_code == 0
    return bool(response.is_committed)


def leader_in(simulated_broker: SimulatedClusterBroker) -> int | None:
    topic = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE)
    index = java_hash(partitioning_id(joint_commit_owner_id(BUNDLE))) % topic.partition_count
    leader = simulated_broker.broker.catalogue.leader_node(TRANSACTION_STATE, index)
    return None if leader is None else leader.node_id


@each_generation
@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_coordinator_knows_the_committed_sequence(
    simulated_cluster: SimulatedCluster, leave: Leave, generation: int
) -> None:
    router, members = await create_topic_and_members(simulated_cluster, generation)
    assert await commit(router, 4, *members)
    first = router.coordinator()
    await leave(first)
    assert (await retry(lambda: router.send(DescribeBundleRequest(BUNDLE), 0))).sequence == 4
    assert router.coordinator() is not first
    assert await commit(router, 4, *members)
    assert not await commit(router, 4)
    assert [sorted(found.committed) for found in await committed_contents(router)] == [[b"a", b"b"]] * 3


@each_generation
@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_coordinator_ends_all_members(
    simulated_cluster: SimulatedCluster, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, members = await create_topic_and_members(simulated_cluster, generation)
    first = router.coordinator()
    with monkeypatch.context() as patch:
        block_forever = asyncio.Event().wait
        patch.setattr(TransactionMarkers, "write_all", lambda *_: block_forever())
        router.begin_send(end_request(0, *members), 0)
        await asyncio.sleep(0.5)
    await leave(first)
    assert await commit(router, 0, *members)
    assert [sorted(found.committed) for found in await committed_contents(router)] == [[b"a", b"b"]] * 3
    assert [found.open for found in await committed_contents(router)] == [[]] * 3


@each_generation
@in_simulated_cluster()
async def test_a_former_coordinator_describes_no_bundle(simulated_cluster: SimulatedCluster, generation: int) -> None:
    """Its memory says that the members are still open, or that the sequence is the last. Either may be out of date."""
    router, members = await create_topic_and_members(simulated_cluster, generation)
    assert await commit(router, 4)
    old = router.coordinator()
    old.registry.disconnect(silently=True)
    others = [simulated_broker for simulated_broker in simulated_cluster.up if simulated_broker is not old]
    for simulated_broker in others:
        simulated_cluster.world.network.cut(simulated_broker.host.name, old.host.name)
    others[0].registry.expire(old.broker.cluster.membership.session)
    while leader_in(others[0]) in (None, old.node_id):
        await asyncio.sleep(0.1)
    stale = [
        old.begin_send(end_request(4), 0),
        old.begin_send(end_request(3), 0),
        old.begin_send(end_request(5, claim(members[0])), 0),
        old.begin_send(end_request(6, BundleMember(members[0].transactional_id, 99, 0)), 0),
        old.begin_send(end_request(-1, claim(members[0]), commit=False), 0),
    ]
    await asyncio.wait(stale, timeout=30)
    responses = [requested.result() for requested in stale if requested.done()]
    assert responses
    assert {response.error_code for response in responses} <= RETRIABLE_CODES
    simulated_cluster.world.network.heal()
    old.registry.reconnect()


@in_simulated_cluster()
async def test_a_coordinator_that_may_have_been_replaced_describes_no_bundle(
    simulated_cluster: SimulatedCluster,
) -> None:
    router, _ = await create_topic_and_members(simulated_cluster, NEWER)
    assert await commit(router, 4)
    simulated_broker = router.coordinator()
    simulated_broker.registry.disconnect()
    await asyncio.sleep(0.01)
    assert (await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)).error_code == CoordinatorNotAvailable.code
    simulated_broker.registry.reconnect()
    await asyncio.sleep(0.1)
    assert (await simulated_broker.send(DescribeBundleRequest(BUNDLE), 0)).sequence == 4
