"""A broker that was paused longer than its session timeout, whose handlers run before its registry client.

Time jumps, and the handler is called before any timer or callback runs, as in the first step of an event loop after
SIGSTOP and SIGCONT. Another broker may lead every partition by then.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.broker.broker_requests import batch, only_response, produce, produce_request
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, commit, committed
from tests.unit.broker.queues.queue_support import ACK, CREATE, EXTEND, TOPIC, WORKERS, alter
from tests.unit.broker.queues.queue_support import SubscriptionMember as Worker
from tests.unit.broker.replication.test_isr_updater import Proposals
from tests.unit.broker.simulated_broker import FakeConnection
from tests.unit.broker.simulated_cluster import (
    SESSION_SECONDS,
    SimulatedCluster,
    SimulatedClusterBroker,
    in_simulated_cluster,
)
from tests.unit.broker.transactions.joint_commit_support import BUNDLE
from tests.unit.broker.transactions.joint_commit_support import sequence as bundle_sequence
from tests.unit.broker.transactions.transaction_support import ID, Transactor

from headrace.broker.controller.controller import ControllerMoved
from headrace.machines.transactions.joint_commits import joint_commit_owner_id
from headrace.model.errors import CoordinatorNotAvailable, NotLeader
from headrace.testkit.registry import SimRegistry
from headrace.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from headrace.wire.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from headrace.wire.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
    SyncGroupRequest,
)
from headrace.wire.messages.queues import SettleItem, SettlePartition, SettleRequest, SettleTopic
from headrace.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeBundleRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
)

LATEST = -1


def in_first_step(handler: Coroutine[Any, Any, Any]) -> Any:
    """What the handler returns before the loop turns. One that waits has begun to act."""
    try:
        handler.send(None)
    except StopIteration as returned:
        return returned.value
    handler.close()
    raise AssertionError("the handler waits: it has begun to act")


def send_after_pause(
    simulated_broker: SimulatedClusterBroker, request: object, version: int, connection: FakeConnection | None = None
) -> Any:
    assert simulated_broker.broker.cluster.membership.session_valid
    simulated_broker.world.loop.skip(SESSION_SECONDS)
    return in_first_step(simulated_broker._serve(request, version, connection or FakeConnection()))


async def coordinator(simulated_cluster: SimulatedCluster, key: str, key_type: int = 0) -> SimulatedClusterBroker:
    while True:
        found = await simulated_cluster[1].send(FindCoordinatorRequest(key=key, key_type=key_type), 3)
        if found.error_code == 0:
            return simulated_cluster[found.node_id]
        await simulated_cluster[1].pass_time(0.1)


# Produce


@pytest.mark.parametrize("acks", [0, 1])
@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_appends_nothing_that_could_be_acknowledged_alone(
    simulated_cluster: SimulatedCluster, acks: int
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    connection = FakeConnection()
    request = produce_request({("t", 0): batch(b"a")}, acks=acks)
    response = send_after_pause(simulated_cluster[1], request, 9, connection)
    assert simulated_cluster.replica(1, "t").log.end_offset == 0
    assert connection.closed if acks == 0 else only_response(response).error_code == NotLeader.code


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_does_not_acknowledge_appends_with_acks_all(
    simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check of the session is needed there: the in-sync set fetches from the leader of the present epoch only."""
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="1")
    await produce(simulated_cluster[1], "t", b"before")
    simulated_cluster[1].host.pause(2 * SESSION_SECONDS)
    buffered = simulated_cluster[1].begin_send(
        produce_request({("t", 0): batch(b"lost")}), 9
    )  # runs first when the broker wakes up
    await simulated_cluster.wait_for_leader("t", 2)
    assert await produce(simulated_cluster[2], "t", b"after") == 1
    assert only_response(await buffered).error_code == NotLeader.code
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.replica(2, "t").log.end_offset == 2


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_accepts_acks_1_again_when_the_registry_confirms_its_session(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1,))
    send_after_pause(simulated_cluster[1], produce_request({("t", 0): batch(b"a")}, acks=1), 9)
    await simulated_cluster.wait_until(lambda: simulated_cluster[1].broker.cluster.membership.session_valid)
    await simulated_cluster.wait_for_leader("t", 1)
    assert (
        only_response(await simulated_cluster[1].send(produce_request({("t", 0): batch(b"a")}, acks=1), 9)).error_code
        == 0
    )


# Consumers


@pytest.mark.parametrize("isolation_level", [0, 1])
@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_returns_no_end_offset(simulated_cluster: SimulatedCluster, isolation_level: int) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    requested = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
    topics = [ListOffsetsTopic(name="t", partitions=requested)]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    response = send_after_pause(simulated_cluster[1], request, 5).topics[0].partitions[0]
    assert (response.error_code, response.offset) == (NotLeader.code, -1)


@pytest.mark.parametrize("version", [7, 8])
@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_coordinator_returns_no_committed_offset(
    simulated_cluster: SimulatedCluster, version: int
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    simulated_broker = await coordinator(simulated_cluster, GROUP)
    assert await commit(simulated_broker, 5) == 0
    assert (await committed(simulated_broker))[0] == 5
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        response = send_after_pause(simulated_broker, OffsetFetchRequest(group_id=GROUP, topics=topics), version)
    else:
        (response,) = send_after_pause(
            simulated_broker, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)]), version
        ).groups
    assert response.error_code == CoordinatorNotAvailable.code


@pytest.mark.parametrize("kind", ["heartbeat", "join", "sync", "describe", "list", "consumer heartbeat"])
@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_coordinator_rejects_group_requests(simulated_cluster: SimulatedCluster, kind: str) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    group = "consumers" if kind == "consumer heartbeat" else GROUP
    simulated_broker = await coordinator(simulated_cluster, group)
    member = ClassicMember(simulated_broker)
    if group == GROUP:
        await member.enter()
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request, version = {
        "heartbeat": (HeartbeatRequest(GROUP, member.generation, member.id), 4),
        "join": (
            JoinGroupRequest(group_id=GROUP, member_id=member.id, protocol_type="consumer", protocols=protocols),
            7,
        ),
        "sync": (SyncGroupRequest(group_id=GROUP, generation_id=member.generation, member_id=member.id), 4),
        "describe": (DescribeGroupsRequest(groups=[GROUP]), 5),
        "list": (ListGroupsRequest(), 4),
        "consumer heartbeat": (
            ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id="m",
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
            1,
        ),
    }[kind]
    response = send_after_pause(simulated_broker, request, version)
    assert (response.groups[0] if kind == "describe" else response).error_code == CoordinatorNotAvailable.code


# Transactions


@pytest.mark.parametrize("kind", ["init", "add", "end", "describe"])
@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_coordinator_rejects_transaction_requests(
    simulated_cluster: SimulatedCluster, kind: str
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    simulated_broker = await coordinator(simulated_cluster, ID, 1)
    producer = Transactor(simulated_broker)
    assert await producer.init() == 0
    assert await producer.add("t", 0) == 0
    request, version = {
        "init": (InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1000), 4),
        "add": (producer.add_request("t", 0), 3),
        "end": (producer._end_request(commit=True), 5),
        "describe": (DescribeTransactionsRequest(transactional_ids=[ID]), 0),
    }[kind]
    response = send_after_pause(simulated_broker, request, version)
    if isinstance(request, AddPartitionsToTxnRequest):
        ((result,),) = [topic.results_by_partition for topic in response.results_by_topic_v3_and_below]
        code = result.partition_error_code
    else:
        code = response.transaction_states[0].error_code if kind == "describe" else response.error_code
    assert code == CoordinatorNotAvailable.code


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_coordinator_describes_no_joint_commit(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    simulated_broker = await coordinator(simulated_cluster, joint_commit_owner_id(BUNDLE), 1)
    assert await bundle_sequence(simulated_broker) == -1
    assert (
        send_after_pause(simulated_broker, DescribeBundleRequest(BUNDLE), 0).error_code == CoordinatorNotAvailable.code
    )


# Queues


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_grants_no_lease(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic(TOPIC, (1, 2))
    assert (await alter(simulated_cluster[1], CREATE)).error_code == 0
    await produce(simulated_cluster[1], TOPIC, b"a")
    (response,) = [
        one
        for topic in send_after_pause(simulated_cluster[1], Worker(simulated_cluster[1]).request(), 0).topics
        for one in topic.partitions
    ]
    assert (response.error_code, response.leased) == (NotLeader.code, [])


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_leader_neither_extends_nor_settles(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic(TOPIC, (1, 2))
    assert (await alter(simulated_cluster[1], CREATE)).error_code == 0
    await produce(simulated_cluster[1], TOPIC, b"a", b"b")
    one, other = await Worker(simulated_cluster[1]).lease()
    items = [
        SettleItem(one.offset, one.offset, one.attempt, ACK),
        SettleItem(other.offset, other.offset, other.attempt, EXTEND, lease_ms=1000),
    ]
    topics = [SettleTopic(name=TOPIC, partitions=[SettlePartition(0, one.epoch, items)])]
    before = simulated_cluster.replica(1, f"__acks.{TOPIC}").log.end_offset
    response = send_after_pause(simulated_cluster[1], SettleRequest(subscription=WORKERS, member="m", topics=topics), 0)
    assert response.topics[0].partitions[0].error_code == NotLeader.code
    assert simulated_cluster.replica(1, f"__acks.{TOPIC}").log.end_offset == before


# Its own decisions


def deafen(registry: SimRegistry) -> None:
    """Let the registry client neither ping nor receive, so that it never notices the expired session."""
    for name in ("_ping", "hear", "hear_of_the_end"):
        setattr(registry, name, lambda *_: None)


@in_simulated_cluster(3, sessions_time_out=True, replica_lag_time_max_ms="4000")
async def test_a_paused_leader_proposes_no_in_sync_set(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    proposals = Proposals(simulated_cluster[1])
    simulated_cluster.expected_to_fail.add(1)
    deafen(simulated_cluster[1].registry)
    simulated_cluster.isolate(3)
    produced = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"b")}, timeout_ms=10_000), 9)
    await produced
    assert simulated_cluster[1].registry.session_state is not None
    assert proposals.checked == []


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_paused_controller_decides_nothing(simulated_cluster: SimulatedCluster) -> None:
    (simulated_broker,) = [one for one in simulated_cluster.up if one.broker.cluster.controller.is_active_controller]
    simulated_broker.broker.cluster.controller._ensure_still_controller()
    simulated_broker.world.loop.skip(SESSION_SECONDS)
    with pytest.raises(ControllerMoved):
        simulated_broker.broker.cluster.controller._ensure_still_controller()
