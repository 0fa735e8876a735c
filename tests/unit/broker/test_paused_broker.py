"""A broker that was paused longer than its registry session lasts, and whose handlers run before the registry's client.

Time passes at once, and the handler is called before any timer or callback runs: as in the first turn of an event loop
after SIGSTOP. By then another broker may lead everything.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.broker.asking import batch, only, produce, produce_request
from tests.unit.broker.bundling import BUNDLE
from tests.unit.broker.bundling import sequence as bundle_sequence
from tests.unit.broker.house import Visit
from tests.unit.broker.members import GROUP, Member, commit, committed
from tests.unit.broker.queueing import ACK, CREATE, EXTEND, TOPIC, WORKERS, alter
from tests.unit.broker.queueing import Member as Worker
from tests.unit.broker.test_in_sync_keeper import Proposals
from tests.unit.broker.town import SESSION_SECONDS, Town, in_town
from tests.unit.broker.transacting import ID, Transactor
from tests.unit.broker.trio import ClusterHouse

from headrace.broker.controller import Deposed
from headrace.machines.bundles import owner_id
from headrace.testkit.registry import SimRegistry
from headrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.wire.messages.describe_bundle import DescribeBundleRequest
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from headrace.wire.messages.settle import SettleItem, SettlePartition, SettleRequest, SettleTopic
from headrace.wire.messages.sync_group import SyncGroupRequest

NOT_LEADER, COORDINATOR_NOT_AVAILABLE = 6, 15
LATEST = -1


def in_first_turn(handler: Coroutine[Any, Any, Any]) -> Any:
    """What the handler returns before the loop turns. One that waits has begun to act."""
    try:
        handler.send(None)
    except StopIteration as returned:
        return returned.value
    handler.close()
    raise AssertionError("the handler waits: it has begun to act")


def ask_after_pause(house: ClusterHouse, request: object, version: int, visit: Visit | None = None) -> Any:
    assert house.broker.cluster.membership.session_valid
    house.world.loop.skip(SESSION_SECONDS)
    return in_first_turn(house._serve(request, version, visit or Visit()))


async def coordinator(town: Town, key: str, key_type: int = 0) -> ClusterHouse:
    while True:
        found = await town[1].ask(FindCoordinatorRequest(key=key, key_type=key_type), 3)
        if found.error_code == 0:
            return town[found.node_id]
        await town[1].pass_time(0.1)


# Produce


@pytest.mark.parametrize("acks", [0, 1])
@in_town(2, sessions_time_out=True)
async def test_it_appends_nothing_that_no_other_broker_would_confirm(town: Town, acks: int) -> None:
    await town.make_topic("t", (1, 2))
    visit = Visit()
    request = produce_request({("t", 0): batch(b"a")}, acks=acks)
    response = ask_after_pause(town[1], request, 9, visit)
    assert town.replica(1, "t").log.end_offset == 0
    assert visit.closed if acks == 0 else only(response).error_code == NOT_LEADER


@in_town(2, sessions_time_out=True)
async def test_what_it_appends_with_acks_all_is_acknowledged_by_no_one(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check of the session is needed there: the in-sync set fetches from the leader of the present epoch only."""
    await town.make_topic("t", (1, 2), min_insync_replicas="1")
    await produce(town[1], "t", b"before")
    town[1].host.pause(2 * SESSION_SECONDS)
    buffered = town[1].begin(produce_request({("t", 0): batch(b"lost")}), 9)  # runs first when the broker wakes up
    await town.until_led("t", 2)
    assert await produce(town[2], "t", b"after") == 1
    assert only(await buffered).error_code == NOT_LEADER
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town.replica(2, "t").log.end_offset == 2


@in_town(2, sessions_time_out=True)
async def test_it_takes_acks_1_again_when_the_registry_has_confirmed_its_session(town: Town) -> None:
    await town.make_topic("t", (1,))
    ask_after_pause(town[1], produce_request({("t", 0): batch(b"a")}, acks=1), 9)
    await town.until(lambda: town[1].broker.cluster.membership.session_valid)
    await town.until_led("t", 1)
    assert only(await town[1].ask(produce_request({("t", 0): batch(b"a")}, acks=1), 9)).error_code == 0


# Consumers


@pytest.mark.parametrize("isolation_level", [0, 1])
@in_town(2, sessions_time_out=True)
async def test_it_tells_no_end_of_a_partition(town: Town, isolation_level: int) -> None:
    await town.make_topic("t", (1, 2))
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
    topics = [ListOffsetsTopic(name="t", partitions=asked)]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    answer = ask_after_pause(town[1], request, 5).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (NOT_LEADER, -1)


@pytest.mark.parametrize("version", [7, 8])
@in_town(2, sessions_time_out=True)
async def test_it_tells_no_committed_offset(town: Town, version: int) -> None:
    await town.make_topic("t", (1, 2))
    house = await coordinator(town, GROUP)
    assert await commit(house, 5) == 0
    assert (await committed(house))[0] == 5
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = ask_after_pause(house, OffsetFetchRequest(group_id=GROUP, topics=topics), version)
    else:
        (answer,) = ask_after_pause(
            house, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)]), version
        ).groups
    assert answer.error_code == COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("kind", ["heartbeat", "join", "sync", "describe", "list", "consumer heartbeat"])
@in_town(2, sessions_time_out=True)
async def test_it_coordinates_no_group(town: Town, kind: str) -> None:
    await town.make_topic("t", (1, 2))
    group = "consumers" if kind == "consumer heartbeat" else GROUP
    house = await coordinator(town, group)
    member = Member(house)
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
    response = ask_after_pause(house, request, version)
    assert (response.groups[0] if kind == "describe" else response).error_code == COORDINATOR_NOT_AVAILABLE


# Transactions


@pytest.mark.parametrize("kind", ["init", "add", "end", "describe"])
@in_town(2, sessions_time_out=True)
async def test_it_coordinates_no_transaction(town: Town, kind: str) -> None:
    await town.make_topic("t", (1, 2))
    house = await coordinator(town, ID, 1)
    producer = Transactor(house)
    assert await producer.init() == 0
    assert await producer.add("t", 0) == 0
    request, version = {
        "init": (InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1000), 4),
        "add": (producer.add_request("t", 0), 3),
        "end": (producer._end_request(commit=True), 5),
        "describe": (DescribeTransactionsRequest(transactional_ids=[ID]), 0),
    }[kind]
    response = ask_after_pause(house, request, version)
    if isinstance(request, AddPartitionsToTxnRequest):
        ((result,),) = [topic.results_by_partition for topic in response.results_by_topic_v3_and_below]
        code = result.partition_error_code
    else:
        code = response.transaction_states[0].error_code if kind == "describe" else response.error_code
    assert code == COORDINATOR_NOT_AVAILABLE


@in_town(2, sessions_time_out=True)
async def test_it_tells_nothing_of_a_bundle(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    house = await coordinator(town, owner_id(BUNDLE), 1)
    assert await bundle_sequence(house) == -1
    assert ask_after_pause(house, DescribeBundleRequest(BUNDLE), 0).error_code == COORDINATOR_NOT_AVAILABLE


# Queues


@in_town(2, sessions_time_out=True)
async def test_it_grants_no_lease(town: Town) -> None:
    await town.make_topic(TOPIC, (1, 2))
    assert (await alter(town[1], CREATE)).error_code == 0
    await produce(town[1], TOPIC, b"a")
    (answer,) = [
        one for topic in ask_after_pause(town[1], Worker(town[1]).request(), 0).topics for one in topic.partitions
    ]
    assert (answer.error_code, answer.leased) == (NOT_LEADER, [])


@in_town(2, sessions_time_out=True)
async def test_it_extends_no_lease_and_settles_nothing_of_the_same_request(town: Town) -> None:
    await town.make_topic(TOPIC, (1, 2))
    assert (await alter(town[1], CREATE)).error_code == 0
    await produce(town[1], TOPIC, b"a", b"b")
    one, other = await Worker(town[1]).lease()
    items = [
        SettleItem(one.offset, one.offset, one.attempt, ACK),
        SettleItem(other.offset, other.offset, other.attempt, EXTEND, lease_ms=1000),
    ]
    topics = [SettleTopic(name=TOPIC, partitions=[SettlePartition(0, one.epoch, items)])]
    before = town.replica(1, f"__acks.{TOPIC}").log.end_offset
    response = ask_after_pause(town[1], SettleRequest(subscription=WORKERS, member="m", topics=topics), 0)
    assert response.topics[0].partitions[0].error_code == NOT_LEADER
    assert town.replica(1, f"__acks.{TOPIC}").log.end_offset == before


# Its own decisions


def deafen(registry: SimRegistry) -> None:
    """Let the client neither ping nor hear anything: it never notices that its session is over."""
    for name in ("_ping", "hear", "hear_of_the_end"):
        setattr(registry, name, lambda *_: None)


@in_town(3, sessions_time_out=True, replica_lag_time_max_ms="4000")
async def test_it_proposes_no_in_sync_set(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    proposals = Proposals(town[1])
    town.doomed.add(1)
    deafen(town[1].registry)
    town.isolate(3)
    produced = town[1].begin(produce_request({("t", 0): batch(b"b")}, timeout_ms=10_000), 9)
    await produced
    assert town[1].registry.session_state is not None
    assert proposals.checked == []


@in_town(2, sessions_time_out=True)
async def test_it_decides_nothing_as_the_controller(town: Town) -> None:
    (house,) = [one for one in town.up if one.broker.cluster.controller.is_presiding]
    house.broker.cluster.controller._ensure_in_office()
    house.world.loop.skip(SESSION_SECONDS)
    with pytest.raises(Deposed):
        house.broker.cluster.controller._ensure_in_office()
