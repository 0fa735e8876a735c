"""The coordinator: what it keeps, how it comes back, and what happens when its log takes no writes."""

from __future__ import annotations

import errno

import pytest
from tests.unit.broker.asking import read_all
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, Member, commit, commit_request, committed, delete_group, describe, listed

from headrace.broker.state_log import java_hash
from headrace.model.errors import CoordinatorLoading
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

MINUTE = 60


async def back(house: House) -> None:
    """Started again, and all groups read."""
    await house.open()
    await house.pass_time(1)
    assert house.broker.coordinator.is_loaded


def topics_of(house: House, group: str = GROUP) -> list[str]:
    """Those for which an offset of the group is kept, whether they exist or not."""
    return [topic for topic, _, _ in house.broker.coordinator.of(group).offsets.fetch_all(group)]


# Coming back


@pytest.mark.parametrize("end", ["stop", "kill", "power cut"])
async def test_groups_and_offsets_come_back_after_every_kind_of_end(house: House, end: str) -> None:
    await house.make_topic("t")
    member, other = Member(house), Member(house, group="other")
    await member.enter()
    await other.enter()
    assert await member.commit(17, metadata="m") == 0
    await other.leave()
    await house.pass_time(1)
    if end == "stop":
        await house.close()
    else:
        house.kill(keep_page_cache=end == "kill")
    await back(house)
    assert await committed(house) == (17, "m")
    assert await listed(house) == {GROUP: "Stable", "other": "Empty"}
    assert await member.heartbeat() == 0, "it does not even have to join again"
    assert await member.commit(18) == 0
    (shown,) = (await describe(house)).members
    assert (shown.member_id, shown.member_assignment) == (member.id, b"everything")


async def test_members_that_do_not_come_back_are_dropped_after_their_session(house: House) -> None:
    member = Member(house)
    await member.enter()
    house.kill()
    await back(house)
    await house.pass_time(5)
    assert (await describe(house)).group_state == "Stable"
    await house.pass_time(10)
    assert (await describe(house)).group_state == "Empty"


async def test_what_was_answered_is_durable(house: House) -> None:
    await house.make_topic("t")
    for number in range(5):
        assert await commit(house, number) == 0
        house.kill(keep_page_cache=False)
        await back(house)
        assert await committed(house) == (number, "")


async def test_a_commit_is_not_answered_before_it_is_durable(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    house.host.disk.delay_seconds = (1.0, 1.0)
    asking = house.begin(commit_request(2), 8)
    await house.turn()
    assert not asking.done()
    await asking


async def test_an_assignment_is_not_answered_before_it_is_durable(house: House) -> None:
    member = Member(house)
    await member.join()
    house.host.disk.delay_seconds = (1.0, 1.0)
    syncing = member.begin_sync({member.id: b"all"})
    await house.pass_time(0.5)
    assert not syncing.done()
    assert (await syncing).assignment == b"all"


async def test_until_its_log_is_read_everybody_is_told_to_come_again(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    await member.commit(5)
    await house.close()
    house.host.disk.delay_seconds = (1.0, 1.0)
    await house.open()
    coordinator = house.broker.coordinator
    assert not coordinator.is_loaded
    with pytest.raises(CoordinatorLoading):
        coordinator.ensure_loaded()
    assert await member.heartbeat() == 14
    assert (await member.begin_join()).error_code == 14
    assert (await member.sync()).error_code == 14
    assert await member.commit(6) == 14
    assert await delete_group(house) == 14
    assert (await house.ask(ListGroupsRequest(), 5)).error_code == 14
    assert (await house.ask(DescribeGroupsRequest(groups=[GROUP]), 5)).groups[0].error_code == 14
    assert not coordinator.is_loaded
    await house.pass_time(30)
    assert coordinator.is_loaded
    assert await committed(house) == (5, "")


async def test_the_records_are_kafkas_and_lie_in_the_partition_of_the_group(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 3, "t", GROUP)
    index = java_hash(GROUP) % 2
    assert len(await read_all(house, CONSUMER_OFFSETS, index)) == 1
    assert await read_all(house, CONSUMER_OFFSETS, 1 - index) == []
    topic = house.broker.catalogue.topic(CONSUMER_OFFSETS)
    assert dict(topic.record.configs)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(("text", "value"), [("", 0), ("a", 97), ("group", 98_629_247), ("Aa", 2112), ("BB", 2112)])
def test_the_partition_is_chosen_by_javas_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_javas_hash_counts_halves_of_surrogate_pairs_and_loses_its_sign() -> None:
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
    assert 0 <= java_hash("polygenelubricants") < 2**31


async def test_damage_puts_only_the_groups_of_its_partition_out_of_service(house: House) -> None:
    await house.make_topic("t")
    healthy = next(name for name in map(str, range(9)) if java_hash(name) % 2 != java_hash(GROUP) % 2)
    for group in (GROUP, healthy):
        await commit(house, 7, "t", group)
    topic_id = house.broker.catalogue.topic(CONSUMER_OFFSETS).id
    await house.close()
    house.host.disk.flip_bit(f"/data/logs/{topic_id.hex}-{java_hash(GROUP) % 2}/{0:020d}.log", 70)
    await back(house)
    assert await committed(house, group=healthy) == (7, "")
    assert await commit(house, 8, "t", healthy) == 0
    member = Member(house)
    member.id = "somebody"
    assert await member.heartbeat() == 15
    assert (await member.begin_join()).error_code == 15
    assert await commit(house, 8) == 15
    assert await delete_group(house) == 15
    assert (await describe(house)).error_code == 15
    asked = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    assert (await house.ask(OffsetFetchRequest(group_id=GROUP, topics=asked), 7)).error_code == 15
    groups = [OffsetFetchRequestGroup(group_id=GROUP), OffsetFetchRequestGroup(group_id=healthy)]
    response = await house.ask(OffsetFetchRequest(groups=groups), 8)
    assert [answer.error_code for answer in response.groups] == [15, 0]


# Growing old


async def test_offsets_of_a_group_without_members_expire(house: House) -> None:
    await house.restart(offsets_retention_minutes="10", offsets_retention_check_interval_ms="1000")
    await house.make_topic("t")
    await commit(house, 1)
    await house.pass_time(9 * MINUTE)
    assert await committed(house) == (1, "")
    await house.pass_time(2 * MINUTE)
    assert await committed(house) == (-1, "")
    assert await listed(house) == {}
    house.kill(keep_page_cache=False)
    await back(house)
    assert await committed(house) == (-1, "")


async def test_offsets_that_members_use_do_not_expire(house: House) -> None:
    await house.restart(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    await house.make_topic("t")
    member = Member(house, "t")
    await member.enter()
    await member.commit(1)
    for _ in range(40):
        await house.pass_time(4)
        assert await member.heartbeat() == 0
    assert await committed(house) == (1, "")
    await member.leave()
    await house.pass_time(30)
    assert await committed(house) == (1, ""), "the time counts from when the group became empty"
    await house.pass_time(60)
    assert await committed(house) == (-1, "")


async def test_an_empty_group_that_never_committed_goes_too(house: House) -> None:
    await house.restart(offsets_retention_check_interval_ms="1000")
    member = Member(house)
    await member.enter()
    await member.leave()
    await house.pass_time(5)
    assert await listed(house) == {}


async def test_one_who_was_told_to_come_again_is_not_forgotten_meanwhile(house: House) -> None:
    await house.restart(offsets_retention_check_interval_ms="1000")
    member = Member(house)
    response = await member.begin_join(5)
    assert response.error_code == 79
    member.id = response.member_id
    await house.pass_time(3)
    assert (await member.join()).error_code == 0


async def test_offsets_of_a_deleted_topic_are_forgotten(house: House) -> None:
    for name in ("t", "u"):
        await house.make_topic(name)
        await commit(house, 1, name)
    await house.delete_topic("t")
    assert topics_of(house) == ["u"]
    house.kill()
    await back(house)
    assert topics_of(house) == ["u"]


# A log that takes no writes


def fail_offsets_log(house: House, operation: str, number: int = errno.EIO, times: int = 1) -> None:
    topic_id = house.broker.catalogue.topic(CONSUMER_OFFSETS).id
    for _ in range(times):
        house.host.disk.fail_next(operation, f"*{topic_id.hex}*.log", number)  # type: ignore[arg-type]


async def test_members_are_told_to_look_for_their_coordinator_again(house: House) -> None:
    """Storage errors mean nothing to a consumer: Java's would give up."""
    await house.make_topic("t")
    member = Member(house)
    await member.join()
    fail_offsets_log(house, "sync")
    assert (await member.sync({member.id: b"all"})).error_code == 15
    assert await commit(house, 1, "t", GROUP) in (15, 25)


@pytest.mark.parametrize("operation", ["append", "sync"])
async def test_a_commit_that_cannot_be_kept_is_refused_in_a_way_that_clients_try_again(
    house: House, operation: str
) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    fail_offsets_log(house, operation)
    assert await commit(house, 2) == 15


async def test_a_full_disk_refuses_a_commit_and_takes_the_next(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    fail_offsets_log(house, "append", errno.ENOSPC)
    assert await commit(house, 2) == 15
    assert await committed(house) == (1, "")
    assert await commit(house, 2) == 0


async def test_a_full_disk_at_the_first_join_is_told_and_tried_again(house: House) -> None:
    house.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    member = Member(house)
    assert (await member.join(3)).error_code == 15
    assert (await member.join(3)).error_code == 0


async def test_a_group_whose_deletion_cannot_be_kept_stays(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    fail_offsets_log(house, "append", errno.ENOSPC)
    assert await delete_group(house) == 15
    assert await committed(house) == (1, "")
    member = Member(house)
    assert (await member.join()).error_code == 0


async def test_a_topic_is_deleted_though_its_offsets_cannot_be_forgotten(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    fail_offsets_log(house, "append", errno.ENOSPC)
    await house.delete_topic("t")
    assert house.broker.catalogue.find("t") is None
    assert all(topic_id == house.broker.catalogue.topic(CONSUMER_OFFSETS).id for topic_id, _ in house.broker.store.logs)


async def test_a_full_disk_does_not_end_the_broker_when_offsets_expire(house: House) -> None:
    await house.restart(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    await house.make_topic("t")
    await commit(house, 1)
    fail_offsets_log(house, "append", errno.ENOSPC, times=3)
    await house.pass_time(2 * MINUTE)
    assert await committed(house) == (-1, "")


# Going down


async def test_everybody_who_waits_is_answered_when_the_broker_goes_down(house: House) -> None:
    member, other = Member(house), Member(house)
    await member.enter()
    joining = other.begin_join(3)
    await house.pass_time(1)
    assert not joining.done()
    house.broker.answer_waiting()
    assert (await joining).error_code == 15
    assert await member.heartbeat() == 15
    assert (await Member(house, group="new").begin_join(3)).error_code == 15
    assert (await house.ask(HeartbeatRequest(group_id="nobody's"), 4)).error_code == 15


async def test_a_group_that_was_stopped_in_order_is_as_it_was(house: House) -> None:
    member = Member(house)
    await member.enter()
    await house.restart()
    await house.pass_time(1)
    assert await member.heartbeat() == 0
