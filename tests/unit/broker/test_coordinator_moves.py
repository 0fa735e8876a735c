"""Partitions of `__consumer_offsets` that go to another broker and come back: nobody is left waiting, nothing that was
acknowledged is forgotten, and nothing of an earlier lead has any effect in a later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.broker.consumer_members import ConsumerMember, describe_consumers
from tests.unit.broker.house import House
from tests.unit.broker.leads import lead, log_of, resign
from tests.unit.broker.members import (
    GROUP,
    Member,
    commit,
    commit_request,
    committed,
    delete_group,
    describe,
    listed,
)
from tests.unit.broker.test_transactional_offsets import commit_in
from tests.unit.broker.transacting import Transactor

from headrace.broker.group_records import offset_record
from headrace.broker.state_log import java_hash
from headrace.machines.offsets import GroupOffsets, OffsetCommitted, OffsetForgotten
from headrace.model.errors import CoordinatorLoading, NotCoordinator
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

ELSEWHERE = next(name for name in map(str, range(9)) if java_hash(name) % 2 != java_hash(GROUP) % 2)
"""A group in the other partition."""


def read_slowly(house: House) -> None:
    """Nothing is in the page cache, and the disk takes its time."""
    house.host.disk.cold_chance = 1.0
    house.host.disk.delay_seconds = (1.0, 1.0)


async def back(house: House) -> None:
    """Led again, and read."""
    lead(house, log_of(house, GROUP))
    await house.pass_time(1)
    assert house.broker.coordinator.is_loaded


async def every_answer(house: House, member: Member) -> dict[str, int]:
    """What is said to everybody who asks for the group."""
    asked = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    whole = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)])
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    return {
        "join": (await member.begin_join()).error_code,
        "sync": (await member.sync()).error_code,
        "heartbeat": await member.heartbeat(),
        "commit": await member.commit(9),
        "describe": (await describe(house)).error_code,
        "delete": await delete_group(house),
        "fetch": (await house.ask(OffsetFetchRequest(group_id=GROUP, topics=asked), 7)).error_code,
        "fetch groups": (await house.ask(whole, 8)).groups[0].error_code,
        "delete offsets": (await house.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)).error_code,
        "consumer heartbeat": (await ConsumerMember(house, "m", "t").beat()).error_code,
        "describe consumers": (await describe_consumers(house)).error_code,
    }


# The lead goes


async def test_whoever_asks_for_a_group_that_went_elsewhere_is_told_to_look_for_it(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    assert await member.commit(5) == 0
    resign(house, log_of(house, GROUP))
    assert set((await every_answer(house, member)).values()) == {NotCoordinator.code}
    assert await listed(house) == {}, "those that are not here are not told"


async def test_groups_of_other_partitions_go_on(house: House) -> None:
    await house.make_topic("t")
    member = Member(house, group=ELSEWHERE)
    await member.enter()
    await commit(house, 1)
    resign(house, log_of(house, GROUP))
    assert await member.heartbeat() == 0
    assert await member.commit(6) == 0
    assert await committed(house, group=ELSEWHERE) == (6, "")
    assert await listed(house) == {ELSEWHERE: "Stable"}


async def test_members_that_wait_for_others_are_told_to_look_elsewhere(house: House) -> None:
    member, other = Member(house), Member(house)
    await member.enter()
    joining = other.begin_join(3)
    await house.pass_time(1)
    assert not joining.done()
    resign(house, log_of(house, GROUP))
    assert (await joining).error_code == NotCoordinator.code


async def test_members_that_wait_for_their_assignment_are_told_to_look_elsewhere(house: House) -> None:
    member, other = Member(house), Member(house)
    joining = member.begin_join(3), other.begin_join(3)
    for one, response in zip((member, other), joining, strict=True):
        one.took(await response)
    (follower,) = (one for one in (member, other) if not one.leads)
    syncing = follower.begin_sync()
    await house.pass_time(0.1)
    assert not syncing.done()
    resign(house, log_of(house, GROUP))
    assert (await syncing).error_code == NotCoordinator.code


async def test_what_is_not_durable_yet_is_not_answered_as_if_it_were(house: House) -> None:
    await house.make_topic("t")
    member, newer = Member(house), ConsumerMember(house, "m", "t", group="newer")
    await member.join()
    await commit(house, 1, "t", ELSEWHERE)
    house.host.disk.delay_seconds = (1.0, 1.0)
    waiting: list[asyncio.Task[Any]] = [
        member.begin_sync({member.id: b"all"}),
        newer.begin_beat(),
        house.begin(commit_request(2, "t", ELSEWHERE), 8),
    ]
    await house.turn()
    for index in (0, 1):
        partition = house.broker.catalogue.topic(CONSUMER_OFFSETS).local(index)
        assert partition is not None
        resign(house, partition)
    sync, beat, written = [await task for task in waiting]
    assert sync.error_code == beat.error_code == NotCoordinator.code
    assert written.topics[0].partitions[0].error_code == NotCoordinator.code
    await house.pass_time(5)


async def test_nothing_rings_for_groups_that_went_elsewhere(house: House) -> None:
    """They are somebody else's to look after: he alone says who has fallen silent."""
    await house.make_topic("t")
    member, newer = Member(house), ConsumerMember(house, "m", "t", group="newer")
    await member.enter()
    assert (await newer.beat()).error_code == 0
    coordinator = house.broker.coordinator
    left = {log_of(house, group): coordinator.of(group) for group in (GROUP, "newer")}
    end_offsets = [partition.log.end_offset for partition in left]
    for partition, groups in left.items():
        resign(house, partition)
        assert not groups._alarms._timers
        assert not groups.consumers._alarms._timers
    await house.pass_time(100)
    assert [partition.log.end_offset for partition in left] == end_offsets


# The lead comes back


async def test_groups_and_offsets_are_read_when_the_lead_begins(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    assert await member.commit(5, metadata="m") == 0
    resign(house, log_of(house, GROUP))
    await back(house)
    assert await committed(house) == (5, "m")
    assert await listed(house) == {GROUP: "Stable"}
    assert await member.heartbeat() == 0, "it does not even have to join again"


async def test_sessions_begin_anew_with_the_lead(house: House) -> None:
    member = Member(house)
    await member.enter()
    resign(house, log_of(house, GROUP))
    await house.pass_time(60)
    await back(house)
    await house.pass_time(8)
    assert await member.heartbeat() == 0
    await house.pass_time(11)
    assert (await describe(house)).group_state == "Empty"


async def test_a_partition_in_which_nothing_is_stored_need_not_be_read(house: House) -> None:
    await house.broker.offsets_log.ensure()
    resign(house, log_of(house, GROUP))
    lead(house, log_of(house, GROUP))
    assert list(house.broker.coordinator.of(GROUP)) == []


async def test_until_a_partition_is_read_only_its_groups_are_told_to_come_again(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    await commit(house, 3, "t", ELSEWHERE)
    resign(house, log_of(house, GROUP))
    read_slowly(house)
    lead(house, log_of(house, GROUP))
    assert set((await every_answer(house, member)).values()) == {CoordinatorLoading.code}
    assert (await house.ask(ListGroupsRequest(), 5)).error_code == CoordinatorLoading.code
    assert await committed(house, group=ELSEWHERE) == (3, "")
    await house.pass_time(5)
    assert await member.heartbeat() == 0


async def test_nothing_is_told_before_all_that_was_found_is_committed(house: House) -> None:
    """What the new leader has read may be on its disk alone."""
    await house.make_topic("t")
    await commit(house, 1)
    partition = log_of(house, GROUP)
    resign(house, partition)
    house.host.disk.delay_seconds = (1.0, 1.0)
    lead(house, partition)
    event = _event(house, 2)
    house.broker.offsets_log.append(GROUP, [offset_record(event)])  # as its predecessor did
    coordinator = house.broker.coordinator
    await house.pass_time(0.5)
    assert partition.high_watermark < partition.log.end_offset
    assert not coordinator.is_loaded
    await house.pass_time(5)
    assert await committed(house) == (2, "")


def _event(house: House, offset: int) -> OffsetCommitted:
    topic = house.broker.catalogue.topic("t")
    return GroupOffsets().commit(GROUP, "t", 0, offset, now_ms=house.host.clock.now_ms(), topic_id=topic.id)


async def test_a_new_epoch_of_the_same_leader_starts_from_nothing(house: House) -> None:
    member, other = Member(house), Member(house)
    await member.enter()
    joining = other.begin_join(3)
    await house.pass_time(1)
    before = house.broker.coordinator.of(GROUP)
    lead(house, log_of(house, GROUP))
    assert (await joining).error_code == NotCoordinator.code
    await house.pass_time(1)
    now = house.broker.coordinator.of(GROUP)
    assert now is not before
    assert now.find(GROUP) is not before.find(GROUP)
    assert await member.heartbeat() == 0


# Between two leads


async def test_what_was_decided_under_an_earlier_lead_is_not_written_in_a_later_one(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 7)
    before = house.broker.coordinator.of(GROUP)
    partition = log_of(house, GROUP)
    resign(house, partition)
    await back(house)
    end_offset = partition.log.end_offset
    with pytest.raises(NotCoordinator):
        await before.commit(GROUP, [_event(house, 3)])
    with pytest.raises(NotCoordinator):
        await before.commit_pending([_event(house, 3)], 1, 0)
    with pytest.raises(NotCoordinator):
        await before.forget([OffsetForgotten(GROUP, "t", 0)])
    with pytest.raises(NotCoordinator):
        await before.settle()
    before.expire(0)
    before.forget_topic("t")
    assert partition.log.end_offset == end_offset
    assert await committed(house) == (7, "")


async def test_a_load_that_is_overtaken_leaves_nothing_behind(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    await member.commit(5)
    partition, coordinator = log_of(house, GROUP), house.broker.coordinator
    resign(house, partition)
    read_slowly(house)
    for seconds in (0, 0.1, 1.1, 2.1, 3.1):
        lead(house, partition)
        await house.pass_time(seconds)
        resign(house, partition)
        assert list(coordinator._led) == [1 - partition.index]
        assert await member.heartbeat() == NotCoordinator.code
    assert partition.on_marker is None
    await house.pass_time(100)
    assert not any(groups.partition is partition for groups in coordinator)
    lead(house, partition)
    await house.pass_time(5)
    assert await committed(house) == (5, "")
    assert await member.heartbeat() == 0


async def test_a_load_that_is_under_way_ends_with_the_broker(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    resign(house, log_of(house, GROUP))
    read_slowly(house)
    lead(house, log_of(house, GROUP))
    await house.turn()
    groups = house.broker.coordinator._led[log_of(house, GROUP).index]
    house.broker.answer_waiting()
    await house.pass_time(5)
    assert not groups.is_loaded
    await house.close()


async def test_offsets_of_a_transaction_wait_for_its_end_across_leads(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 3)
    one = Transactor(house)
    await one.init()
    partition = log_of(house, GROUP)
    assert await commit_in(one, 7) == 0
    resign(house, partition)
    assert not any(groups.partition is partition for groups in house.broker.coordinator)
    await back(house)
    assert house.broker.coordinator.of(GROUP).offsets.is_pending(GROUP, "t", 0)
    assert await committed(house) == (3, "")
    assert await one.commit() == 0
    assert await committed(house) == (7, "m")


async def test_the_end_of_a_transaction_that_comes_while_the_log_is_read_counts(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    assert await commit_in(one, 7) == 0
    partition, coordinator = log_of(house, GROUP), house.broker.coordinator
    resign(house, partition)
    read_slowly(house)
    lead(house, partition)
    await house.turn()
    assert not coordinator.is_loaded
    partition.append_marker(one.producer_id, one.epoch, True, 0, house.host.clock.now_ms())
    await house.pass_time(30)
    assert coordinator.is_loaded
    assert await committed(house) == (7, "m")
    assert await listed(house) == {GROUP: "Empty"}


async def test_no_offset_that_was_acknowledged_is_forgotten_however_often_the_lead_moves(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 0)
    partition = log_of(house, GROUP)
    house.host.disk.delay_seconds = (0.001, 0.02)
    sent = acknowledged = 0
    refusals = set()
    moving = asyncio.create_task(_move(house, partition_moves=40))
    while not moving.done():
        sent += 1
        code = await commit(house, sent)
        if code == 0:
            acknowledged = sent
        else:
            refusals.add(code)
            await house.pass_time(0.005)
        asked = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await house.ask(OffsetFetchRequest(group_id=GROUP, topics=asked), 7)
        if answer.error_code == 0:
            assert acknowledged <= answer.topics[0].partitions[0].committed_offset <= sent
    await moving
    assert acknowledged > 20
    assert refusals <= {CoordinatorLoading.code, NotCoordinator.code}
    assert refusals
    await house.pass_time(1)
    assert partition.is_leader
    assert acknowledged <= (await committed(house))[0] <= sent


async def _move(house: House, partition_moves: int) -> None:
    partition = log_of(house, GROUP)
    for number in range(partition_moves):
        await house.pass_time(0.05 + 0.001 * number)
        resign(house, partition)
        await house.pass_time(0.01)
        lead(house, partition)
