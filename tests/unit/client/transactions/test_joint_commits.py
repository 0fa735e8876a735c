"""Joint commits of a client: guarantees against a real broker, failures against a script."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world
from tests.unit.client.simulated_server import client, start_broker
from tests.unit.client.transactions.test_transactional_producer import committed_values

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.admin.transaction_admin import TransactionAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import CommitInDoubt, only_result, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.client.transactions.joint_commits import (
    JointCommitMember,
    MemberTransaction,
    abort_joint_commit,
    commit_jointly,
    committed_sequence,
    member_id,
)
from headrace.client.transactions.transactional_producer import TransactionalProducer
from headrace.machines.transactions.joint_commits import joint_commit_owner_id
from headrace.model.errors import (
    ConcurrentTransactions,
    HeadraceError,
    InvalidRequest,
    InvalidTransactionState,
    NotCoordinator,
    ProducerFenced,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.transactions import EndBundleRequest, EndBundleResponse

BUNDLE = "nightly"
TARGET = TopicPartition("target", 0)


def with_broker(scenario: Callable[[Cluster, World], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        await start_broker(world, transaction_abort_timed_out_transaction_cleanup_interval_ms="1000")
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("target", 2))
            await scenario(cluster, world)

    in_world(play)


async def produce(cluster: Cluster, member: JointCommitMember, value: bytes, sequence: int = 0) -> None:
    batch = build_batch(
        [BatchRecord(value=value, timestamp_ms=1)],
        producer_id=member.producer_id,
        producer_epoch=member.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )
    data = PartitionProduceData(index=TARGET.partition, records=memoryview(batch))
    topics = [TopicProduceData(name=TARGET.topic, partition_data=[data])]
    request = ProduceRequest(transactional_id=member.transactional_id, acks=-1, timeout_ms=3000, topic_data=topics)
    response = await cluster.call(request, version_max=11)
    raise_for_code(only_result(only_result(response.responses).partition_responses).error_code)


async def write(cluster: Cluster, name: str, *values: bytes, timeout_seconds: float = 60.0) -> JointCommitMember:
    """A member that has written, and is left open."""
    transaction = MemberTransaction(cluster, BUNDLE, name, timeout_seconds)
    member = await transaction.begin()
    for sequence, value in enumerate(values):
        await transaction.enlist([TARGET])
        await produce(cluster, member, value, sequence)
    return member


# Against a real broker


def test_members_commit_as_one() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert await committed_sequence(cluster, BUNDLE) == -1
        members = [await write(cluster, "0", b"a", b"b"), await write(cluster, "1", b"c"), await write(cluster, "2")]
        assert await committed_values(cluster) == []
        assert await commit_jointly(cluster, BUNDLE, 0, members)
        assert await committed_values(cluster) == [b"a", b"b", b"c"]
        assert await committed_sequence(cluster, BUNDLE) == 0
        assert await commit_jointly(cluster, BUNDLE, 0, members[::-1]), "the same members, in any order"
        assert await commit_jointly(cluster, BUNDLE, 1, [])
        assert await committed_sequence(cluster, BUNDLE) == 1

    with_broker(scenario)


def test_a_replaced_driver_gets_an_error_and_its_members_are_aborted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        old, new = await write(cluster, "0", b"old"), await write(cluster, "0.1", b"new")
        assert await commit_jointly(cluster, BUNDLE, 0, [new])
        assert not await commit_jointly(cluster, BUNDLE, 0, [old])
        late = await write(cluster, "0", b"late")
        assert not await commit_jointly(cluster, BUNDLE, 0, [late])
        assert await committed_values(cluster) == [b"new"]
        with pytest.raises(ProducerFenced):
            await commit_jointly(cluster, BUNDLE, 1, [late])

    with_broker(scenario)


def test_a_new_attempt_fences_the_previous_one() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        transaction = MemberTransaction(cluster, BUNDLE, "0", 60.0)
        first = await transaction.begin()
        await transaction.enlist([TARGET])
        await produce(cluster, first, b"first")
        second = await write(cluster, "0", b"second")
        assert second.transactional_id == first.transactional_id == member_id(BUNDLE, "0")
        assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
        with pytest.raises(HeadraceError):
            await produce(cluster, first, b"first again", 1)
        with pytest.raises(ProducerFenced):
            await transaction.enlist([TopicPartition("target", 1)])
        with pytest.raises(ProducerFenced, match="headrace-bundle:nightly#0"):
            await commit_jointly(cluster, BUNDLE, 0, [first])
        assert await commit_jointly(cluster, BUNDLE, 0, [second])
        assert await committed_values(cluster) == [b"second"]

    with_broker(scenario)


def test_a_member_that_timed_out_does_not_abort_the_others() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        slow, quick = await write(cluster, "0", b"slow", timeout_seconds=2.0), await write(cluster, "1", b"quick")
        while (await TransactionAdmin(cluster).describe(slow.transactional_id)).state != "CompleteAbort":
            await committed_values(cluster)
        with pytest.raises(ProducerFenced):
            await commit_jointly(cluster, BUNDLE, 0, [slow, quick])
        assert await committed_sequence(cluster, BUNDLE) == -1
        await abort_joint_commit(cluster, BUNDLE, [slow, quick])
        assert await committed_values(cluster) == []

    with_broker(scenario)


def test_an_abort_ends_open_transactions_and_reverts_no_commit() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        one, two = await write(cluster, "0", b"a"), await write(cluster, "1", b"b")
        assert await commit_jointly(cluster, BUNDLE, 0, [one])
        await abort_joint_commit(cluster, BUNDLE, [one, two])
        await abort_joint_commit(cluster, BUNDLE, [])
        assert await committed_values(cluster) == [b"a"]
        assert (await TransactionAdmin(cluster).describe(two.transactional_id)).state == "CompleteAbort"

    with_broker(scenario)


def test_a_member_is_committed_only_by_its_joint_commit() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, member_id(BUNDLE, "0")) as producer:
            await producer.begin()
            await (await producer.submit("target", b"a"))
            with pytest.raises(InvalidTransactionState):
                await producer.commit()
            member = JointCommitMember(producer.transactional_id, *producer.identity)
            assert await commit_jointly(cluster, BUNDLE, 0, [member])
        assert await committed_values(cluster) == [b"a"]

    with_broker(scenario)


def test_operators_see_members_like_any_other_and_can_abort_them() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        one, two = await write(cluster, "0", b"a"), await write(cluster, "1", b"b")
        admin = TransactionAdmin(cluster)
        assert [(one.transactional_id, one.state) for one in await admin.list()] == [
            (member_id(BUNDLE, "0"), "Ongoing"),
            (member_id(BUNDLE, "1"), "Ongoing"),
        ]
        assert (await admin.describe(one.transactional_id)).partitions == [TARGET]
        await admin.abort(two.transactional_id)
        with pytest.raises(ProducerFenced):
            await commit_jointly(cluster, BUNDLE, 0, [one, two])
        assert await commit_jointly(cluster, BUNDLE, 0, [one])

    with_broker(scenario)


def test_a_transaction_without_begin_or_name_is_rejected_at_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        with pytest.raises(InvalidTransactionState, match="begin"):
            await MemberTransaction(cluster, BUNDLE, "0", 60.0).enlist([TARGET])
        for bundle, member in (("a#b", "0"), ("", "0"), ("b", "")):
            with pytest.raises(InvalidRequest):
                MemberTransaction(cluster, bundle, member, 60.0)
        with pytest.raises(InvalidRequest):
            await committed_sequence(cluster, "a#b")
        with pytest.raises(InvalidRequest):
            await commit_jointly(cluster, "", 0, [])
        with pytest.raises(InvalidRequest):
            await abort_joint_commit(cluster, "other", [JointCommitMember(member_id(BUNDLE, "0"), 1, 0)])

    with_broker(scenario)


def test_a_member_travels_between_processes() -> None:
    member = JointCommitMember(member_id(BUNDLE, "17.2"), 4, 2)
    assert pickle.loads(pickle.dumps(member)) == member


# Against a script


class ScriptedCoordinator:
    """A broker that coordinates the joint commit and records the requests."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.requested: list[EndBundleRequest] = []
        self.keys: set[str] = set()
        broker._behave = self.behave  # type: ignore[method-assign]
        self._behave = ScriptedBroker._behave

    async def behave(self, request: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            self.keys.update(request.coordinator_keys)
            return FindCoordinatorResponse(coordinators=[Coordinator(key=request.coordinator_keys[0], node_id=1)])
        if isinstance(request, EndBundleRequest):
            self.requested.append(request)
            return EndBundleResponse(is_committed=request.is_commit, sequence=request.sequence)
        return await self._behave(self.broker, request)


def with_script(scenario: Callable[[Cluster, ScriptedCoordinator], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, target=1)
        coordinating = ScriptedCoordinator(await scripted_cluster.broker())
        async with scripted_cluster.cluster(ClientSettings(deadline_seconds=5)) as cluster:
            await scenario(cluster, coordinating)

    in_world(play)


MEMBERS = [JointCommitMember(member_id(BUNDLE, "0"), 7, 0)]


def test_requests_without_a_response_are_repeated_unchanged() -> None:
    async def scenario(cluster: Cluster, coordinating: ScriptedCoordinator) -> None:
        coordinating.broker.script(
            apis.END_BUNDLE,
            Fault.DONE_THEN_CLOSE,
            EndBundleResponse(error_code=ConcurrentTransactions.code),
            EndBundleResponse(error_code=NotCoordinator.code),
        )
        assert await commit_jointly(cluster, BUNDLE, 3, MEMBERS)
        assert len(coordinating.requested) >= 1
        assert all(requested == coordinating.requested[0] for requested in coordinating.requested)
        assert coordinating.keys == {joint_commit_owner_id(BUNDLE)}

    with_script(scenario)


def test_a_commit_without_a_response_is_in_doubt() -> None:
    async def scenario(cluster: Cluster, coordinating: ScriptedCoordinator) -> None:
        coordinating.broker.script(apis.END_BUNDLE, *[Fault.CLOSE] * 100)
        with pytest.raises(CommitInDoubt, match="ask again"):
            await commit_jointly(cluster, BUNDLE, 3, MEMBERS)
        coordinating.broker._scripts[apis.END_BUNDLE].clear()
        assert await commit_jointly(cluster, BUNDLE, 3, MEMBERS)

    with_script(scenario)


def test_an_error_has_the_message_of_the_broker() -> None:
    async def scenario(cluster: Cluster, coordinating: ScriptedCoordinator) -> None:
        rejected = EndBundleResponse(error_code=ProducerFenced.code, error_message="epoch 0 is over")
        coordinating.broker.script(apis.END_BUNDLE, rejected)
        with pytest.raises(ProducerFenced, match="epoch 0 is over"):
            await commit_jointly(cluster, BUNDLE, 3, MEMBERS)

    with_script(scenario)
