"""Partitions of `__consumer_offsets` that move to another broker and back.

- Every waiting request gets a response.
- No acknowledged state is lost.
- Nothing from an earlier leader term takes effect in a later one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.broker.groups.classic_members import (
    GROUP,
    ClassicMember,
    commit,
    commit_request,
    committed,
    delete_group,
    describe,
    listed,
)
from tests.unit.broker.groups.consumer_members import ConsumerMember, describe_consumers
from tests.unit.broker.leadership_changes import become_follower, become_leader, log_of
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.test_transactional_offsets import commit_in
from tests.unit.broker.transactions.transaction_support import Transactor

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.groups.group_records import offset_record
from headrace.machines.groups.group_offsets import GroupOffsets, OffsetCommitted, OffsetForgotten
from headrace.model.errors import CoordinatorLoading, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from headrace.wire.messages.groups import ListGroupsRequest

ELSEWHERE = next(name for name in map(str, range(9)) if java_hash(name) % 2 != java_hash(GROUP) % 2)
"""A group in the other partition."""


def read_slowly(simulated_broker: SimulatedBroker) -> None:
    """Nothing is in the page cache, and the disk takes its time."""
    simulated_broker.host.disk.cold_chance = 1.0
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)


async def back(simulated_broker: SimulatedBroker) -> None:
    """Led again, and read."""
    become_leader(simulated_broker, log_of(simulated_broker, GROUP))
    await simulated_broker.pass_time(1)
    assert simulated_broker.broker.coordinator.is_loaded


async def every_answer(simulated_broker: SimulatedBroker, member: ClassicMember) -> dict[str, int]:
    """The error codes of all requests for the group."""
    requested = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    whole = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)])
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    return {
        "join": (await member.begin_join()).error_code,
        "sync": (await member.sync()).error_code,
        "heartbeat": await member.heartbeat(),
        "commit": await member.commit(9),
        "describe": (await describe(simulated_broker)).error_code,
        "delete": await delete_group(simulated_broker),
        "fetch": (await simulated_broker.send(OffsetFetchRequest(group_id=GROUP, topics=requested), 7)).error_code,
        "fetch groups": (await simulated_broker.send(whole, 8)).groups[0].error_code,
        "delete offsets": (
            await simulated_broker.send(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
        ).error_code,
        "consumer heartbeat": (await ConsumerMember(simulated_broker, "m", "t").beat()).error_code,
        "describe consumers": (await describe_consumers(simulated_broker)).error_code,
    }


# The lead goes


async def test_requests_for_a_group_that_moved_get_not_coordinator(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    assert await member.commit(5) == 0
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    assert set((await every_answer(simulated_broker, member)).values()) == {NotCoordinator.code}
    assert await listed(simulated_broker) == {}, "those that are not here are not told"


async def test_groups_of_other_partitions_are_not_affected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker, group=ELSEWHERE)
    await member.enter()
    await commit(simulated_broker, 1)
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    assert await member.heartbeat() == 0
    assert await member.commit(6) == 0
    assert await committed(simulated_broker, group=ELSEWHERE) == (6, "")
    assert await listed(simulated_broker) == {ELSEWHERE: "Stable"}


async def test_waiting_joins_get_not_coordinator(simulated_broker: SimulatedBroker) -> None:
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    await member.enter()
    joining = other.begin_join(3)
    await simulated_broker.pass_time(1)
    assert not joining.done()
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    assert (await joining).error_code == NotCoordinator.code


async def test_waiting_syncs_get_not_coordinator(
    simulated_broker: SimulatedBroker,
) -> None:
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    joining = member.begin_join(3), other.begin_join(3)
    for one, response in zip((member, other), joining, strict=True):
        one.apply_response(await response)
    (follower,) = (one for one in (member, other) if not one.leads)
    syncing = follower.begin_sync()
    await simulated_broker.pass_time(0.1)
    assert not syncing.done()
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    assert (await syncing).error_code == NotCoordinator.code


async def test_changes_that_are_not_durable_are_not_acknowledged(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member, newer = ClassicMember(simulated_broker), ConsumerMember(simulated_broker, "m", "t", group="newer")
    await member.join()
    await commit(simulated_broker, 1, "t", ELSEWHERE)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    waiting: list[asyncio.Task[Any]] = [
        member.begin_sync({member.id: b"all"}),
        newer.begin_beat(),
        simulated_broker.begin_send(commit_request(2, "t", ELSEWHERE), 8),
    ]
    await simulated_broker.run_ready_tasks()
    for index in (0, 1):
        partition = simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS).replicas.get(index)
        assert partition is not None
        become_follower(simulated_broker, partition)
    sync, beat, written = [await task for task in waiting]
    assert sync.error_code == beat.error_code == NotCoordinator.code
    assert written.topics[0].partitions[0].error_code == NotCoordinator.code
    await simulated_broker.pass_time(5)


async def test_no_timer_fires_for_groups_that_moved(simulated_broker: SimulatedBroker) -> None:
    """Only their present coordinator may remove members without heartbeats."""
    await simulated_broker.create_topic("t")
    member, newer = ClassicMember(simulated_broker), ConsumerMember(simulated_broker, "m", "t", group="newer")
    await member.enter()
    assert (await newer.beat()).error_code == 0
    coordinator = simulated_broker.broker.coordinator
    left = {log_of(simulated_broker, group): coordinator.of(group) for group in (GROUP, "newer")}
    end_offsets = [partition.log.end_offset for partition in left]
    for partition, groups in left.items():
        become_follower(simulated_broker, partition)
        assert not groups._timers._timers
        assert not groups.consumers._timers._timers
    await simulated_broker.pass_time(100)
    assert [partition.log.end_offset for partition in left] == end_offsets


# The lead comes back


async def test_groups_and_offsets_are_loaded_when_the_leadership_begins(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    assert await member.commit(5, metadata="m") == 0
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    await back(simulated_broker)
    assert await committed(simulated_broker) == (5, "m")
    assert await listed(simulated_broker) == {GROUP: "Stable"}
    assert await member.heartbeat() == 0, "it does not even have to join again"


async def test_sessions_are_renewed_when_the_leadership_begins(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    await simulated_broker.pass_time(60)
    await back(simulated_broker)
    await simulated_broker.pass_time(8)
    assert await member.heartbeat() == 0
    await simulated_broker.pass_time(11)
    assert (await describe(simulated_broker)).group_state == "Empty"


async def test_an_empty_partition_needs_no_load(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.broker.offsets_log.ensure()
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    become_leader(simulated_broker, log_of(simulated_broker, GROUP))
    assert list(simulated_broker.broker.coordinator.of(GROUP)) == []


async def test_only_groups_of_a_loading_partition_get_a_loading_error(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    await commit(simulated_broker, 3, "t", ELSEWHERE)
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    read_slowly(simulated_broker)
    become_leader(simulated_broker, log_of(simulated_broker, GROUP))
    assert set((await every_answer(simulated_broker, member)).values()) == {CoordinatorLoading.code}
    assert (await simulated_broker.send(ListGroupsRequest(), 5)).error_code == CoordinatorLoading.code
    assert await committed(simulated_broker, group=ELSEWHERE) == (3, "")
    await simulated_broker.pass_time(5)
    assert await member.heartbeat() == 0


async def test_nothing_is_served_before_all_loaded_records_are_committed(simulated_broker: SimulatedBroker) -> None:
    """What the new leader has read may be on its disk alone."""
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    partition = log_of(simulated_broker, GROUP)
    become_follower(simulated_broker, partition)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    become_leader(simulated_broker, partition)
    event = _event(simulated_broker, 2)
    simulated_broker.broker.offsets_log.append(GROUP, [offset_record(event)])  # as its predecessor did
    coordinator = simulated_broker.broker.coordinator
    await simulated_broker.pass_time(0.5)
    assert partition.high_watermark < partition.log.end_offset
    assert not coordinator.is_loaded
    await simulated_broker.pass_time(5)
    assert await committed(simulated_broker) == (2, "")


def _event(simulated_broker: SimulatedBroker, offset: int) -> OffsetCommitted:
    topic = simulated_broker.broker.catalogue.topic("t")
    return GroupOffsets().commit(GROUP, "t", 0, offset, now_ms=simulated_broker.host.clock.now_ms(), topic_id=topic.id)


async def test_a_new_epoch_of_the_same_leader_loads_everything_again(simulated_broker: SimulatedBroker) -> None:
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    await member.enter()
    joining = other.begin_join(3)
    await simulated_broker.pass_time(1)
    before = simulated_broker.broker.coordinator.of(GROUP)
    become_leader(simulated_broker, log_of(simulated_broker, GROUP))
    assert (await joining).error_code == NotCoordinator.code
    await simulated_broker.pass_time(1)
    now = simulated_broker.broker.coordinator.of(GROUP)
    assert now is not before
    assert now.find(GROUP) is not before.find(GROUP)
    assert await member.heartbeat() == 0


# Between two leads


async def test_decisions_of_an_earlier_leadership_are_not_written_in_a_later_one(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 7)
    before = simulated_broker.broker.coordinator.of(GROUP)
    partition = log_of(simulated_broker, GROUP)
    become_follower(simulated_broker, partition)
    await back(simulated_broker)
    end_offset = partition.log.end_offset
    with pytest.raises(NotCoordinator):
        await before.commit(GROUP, [_event(simulated_broker, 3)])
    with pytest.raises(NotCoordinator):
        await before.commit_pending([_event(simulated_broker, 3)], 1, 0)
    with pytest.raises(NotCoordinator):
        await before.forget([OffsetForgotten(GROUP, "t", 0)])
    with pytest.raises(NotCoordinator):
        await before.settle()
    before.expire(0)
    before.forget_topic("t")
    assert partition.log.end_offset == end_offset
    assert await committed(simulated_broker) == (7, "")


async def test_an_outdated_load_leaves_nothing_behind(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    await member.commit(5)
    partition, coordinator = log_of(simulated_broker, GROUP), simulated_broker.broker.coordinator
    become_follower(simulated_broker, partition)
    read_slowly(simulated_broker)
    for seconds in (0, 0.1, 1.1, 2.1, 3.1):
        become_leader(simulated_broker, partition)
        await simulated_broker.pass_time(seconds)
        become_follower(simulated_broker, partition)
        assert list(coordinator._shards) == [1 - partition.index]
        assert await member.heartbeat() == NotCoordinator.code
    assert partition.on_marker is None
    await simulated_broker.pass_time(100)
    assert not any(groups.partition is partition for groups in coordinator)
    become_leader(simulated_broker, partition)
    await simulated_broker.pass_time(5)
    assert await committed(simulated_broker) == (5, "")
    assert await member.heartbeat() == 0


async def test_a_load_in_progress_ends_when_the_broker_stops(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    become_follower(simulated_broker, log_of(simulated_broker, GROUP))
    read_slowly(simulated_broker)
    become_leader(simulated_broker, log_of(simulated_broker, GROUP))
    await simulated_broker.run_ready_tasks()
    groups = simulated_broker.broker.coordinator._shards[log_of(simulated_broker, GROUP).index]
    simulated_broker.broker.complete_waiting_requests()
    await simulated_broker.pass_time(5)
    assert not groups.is_loaded
    await simulated_broker.close()


async def test_pending_offsets_wait_for_the_marker_across_leaderships(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 3)
    one = Transactor(simulated_broker)
    await one.init()
    partition = log_of(simulated_broker, GROUP)
    assert await commit_in(one, 7) == 0
    become_follower(simulated_broker, partition)
    assert not any(groups.partition is partition for groups in simulated_broker.broker.coordinator)
    await back(simulated_broker)
    assert simulated_broker.broker.coordinator.of(GROUP).offsets.is_pending(GROUP, "t", 0)
    assert await committed(simulated_broker) == (3, "")
    assert await one.commit() == 0
    assert await committed(simulated_broker) == (7, "m")


async def test_a_marker_that_arrives_during_the_load_applies(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    assert await commit_in(one, 7) == 0
    partition, coordinator = log_of(simulated_broker, GROUP), simulated_broker.broker.coordinator
    become_follower(simulated_broker, partition)
    read_slowly(simulated_broker)
    become_leader(simulated_broker, partition)
    await simulated_broker.run_ready_tasks()
    assert not coordinator.is_loaded
    partition.append_marker(one.producer_id, one.epoch, True, 0, simulated_broker.host.clock.now_ms())
    await simulated_broker.pass_time(30)
    assert coordinator.is_loaded
    assert await committed(simulated_broker) == (7, "m")
    assert await listed(simulated_broker) == {GROUP: "Empty"}


async def test_no_acknowledged_offset_is_lost_however_often_the_leadership_moves(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 0)
    partition = log_of(simulated_broker, GROUP)
    simulated_broker.host.disk.delay_seconds = (0.001, 0.02)
    sent = acknowledged = 0
    errors = set()
    moving = asyncio.create_task(_move(simulated_broker, partition_moves=40))
    while not moving.done():
        sent += 1
        code = await commit(simulated_broker, sent)
        if code == 0:
            acknowledged = sent
        else:
            errors.add(code)
            await simulated_broker.pass_time(0.005)
        requested = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        response = await simulated_broker.send(OffsetFetchRequest(group_id=GROUP, topics=requested), 7)
        if response.error_code == 0:
            assert acknowledged <= response.topics[0].partitions[0].committed_offset <= sent
    await moving
    assert acknowledged > 20
    assert errors <= {CoordinatorLoading.code, NotCoordinator.code}
    assert errors
    await simulated_broker.pass_time(1)
    assert partition.is_leader
    assert acknowledged <= (await committed(simulated_broker))[0] <= sent


async def _move(simulated_broker: SimulatedBroker, partition_moves: int) -> None:
    partition = log_of(simulated_broker, GROUP)
    for number in range(partition_moves):
        await simulated_broker.pass_time(0.05 + 0.001 * number)
        become_follower(simulated_broker, partition)
        await simulated_broker.pass_time(0.01)
        become_leader(simulated_broker, partition)
