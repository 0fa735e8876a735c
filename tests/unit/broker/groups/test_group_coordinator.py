"""The group coordinator: its durable state, its recovery, and its behaviour when its log accepts no writes."""

from __future__ import annotations

import errno

import pytest
from tests.unit.broker.broker_requests import read_all
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
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.state_log import java_hash
from headrace.model.errors import CoordinatorLoading, CoordinatorNotAvailable, MemberIdRequired, UnknownMemberId
from headrace.model.names import CONSUMER_OFFSETS
from headrace.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from headrace.wire.messages.groups import DescribeGroupsRequest, HeartbeatRequest, ListGroupsRequest

MINUTE = 60


async def back(simulated_broker: SimulatedBroker) -> None:
    """Started again, and all groups read."""
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert simulated_broker.broker.coordinator.is_loaded


def topics_of(simulated_broker: SimulatedBroker, group: str = GROUP) -> list[str]:
    """The topics for which the group has an offset, whether they exist or not."""
    return [topic for topic, _, _ in simulated_broker.broker.coordinator.of(group).offsets.fetch_all(group)]


# Coming back


@pytest.mark.parametrize("end", ["stop", "kill", "power cut"])
async def test_groups_and_offsets_survive_every_kind_of_restart(simulated_broker: SimulatedBroker, end: str) -> None:
    await simulated_broker.create_topic("t")
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker, group="other")
    await member.enter()
    await other.enter()
    assert await member.commit(17, metadata="m") == 0
    await other.leave()
    await simulated_broker.pass_time(1)
    if end == "stop":
        await simulated_broker.close()
    else:
        simulated_broker.kill(keep_page_cache=end == "kill")
    await back(simulated_broker)
    assert await committed(simulated_broker) == (17, "m")
    assert await listed(simulated_broker) == {GROUP: "Stable", "other": "Empty"}
    assert await member.heartbeat() == 0, "it does not even have to join again"
    assert await member.commit(18) == 0
    (shown,) = (await describe(simulated_broker)).members
    assert (shown.member_id, shown.member_assignment) == (member.id, b"everything")


async def test_members_that_do_not_return_are_removed_after_their_session(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    simulated_broker.kill()
    await back(simulated_broker)
    await simulated_broker.pass_time(5)
    assert (await describe(simulated_broker)).group_state == "Stable"
    await simulated_broker.pass_time(10)
    assert (await describe(simulated_broker)).group_state == "Empty"


async def test_acknowledged_commits_are_durable(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    for number in range(5):
        assert await commit(simulated_broker, number) == 0
        simulated_broker.kill(keep_page_cache=False)
        await back(simulated_broker)
        assert await committed(simulated_broker) == (number, "")


async def test_a_commit_gets_no_response_before_it_is_durable(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    pending = simulated_broker.begin_send(commit_request(2), 8)
    await simulated_broker.run_ready_tasks()
    assert not pending.done()
    await pending


async def test_an_assignment_is_not_sent_before_it_is_durable(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.join()
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    syncing = member.begin_sync({member.id: b"all"})
    await simulated_broker.pass_time(0.5)
    assert not syncing.done()
    assert (await syncing).assignment == b"all"


async def test_requests_get_a_loading_error_until_the_log_is_loaded(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    await member.commit(5)
    await simulated_broker.close()
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    await simulated_broker.open()
    coordinator = simulated_broker.broker.coordinator
    assert not coordinator.is_loaded
    with pytest.raises(CoordinatorLoading):
        coordinator.ensure_loaded()
    assert await member.heartbeat() == CoordinatorLoading.code
    assert (await member.begin_join()).error_code == CoordinatorLoading.code
    assert (await member.sync()).error_code == CoordinatorLoading.code
    assert await member.commit(6) == CoordinatorLoading.code
    assert await delete_group(simulated_broker) == CoordinatorLoading.code
    assert (await simulated_broker.send(ListGroupsRequest(), 5)).error_code == CoordinatorLoading.code
    assert (await simulated_broker.send(DescribeGroupsRequest(groups=[GROUP]), 5)).groups[
        0
    ].error_code == CoordinatorLoading.code
    assert not coordinator.is_loaded
    await simulated_broker.pass_time(30)
    assert coordinator.is_loaded
    assert await committed(simulated_broker) == (5, "")


async def test_the_records_have_kafkas_format_and_are_in_the_partition_of_the_group(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 3, "t", GROUP)
    index = java_hash(GROUP) % 2
    assert len(await read_all(simulated_broker, CONSUMER_OFFSETS, index)) == 1
    assert await read_all(simulated_broker, CONSUMER_OFFSETS, 1 - index) == []
    topic = simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS)
    assert dict(topic.record.configs)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(("text", "value"), [("", 0), ("a", 97), ("group", 98_629_247), ("Aa", 2112), ("BB", 2112)])
def test_the_partition_is_chosen_by_javas_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_javas_hash_counts_halves_of_surrogate_pairs_and_loses_its_sign() -> None:
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
    assert 0 <= java_hash("polygenelubricants") < 2**31


async def test_damage_puts_only_the_groups_of_its_partition_out_of_service(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    healthy = next(name for name in map(str, range(9)) if java_hash(name) % 2 != java_hash(GROUP) % 2)
    for group in (GROUP, healthy):
        await commit(simulated_broker, 7, "t", group)
    topic_id = simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS).id
    await simulated_broker.close()
    simulated_broker.host.disk.flip_bit(f"/data/logs/{topic_id.hex}-{java_hash(GROUP) % 2}/{0:020d}.log", 70)
    await back(simulated_broker)
    assert await committed(simulated_broker, group=healthy) == (7, "")
    assert await commit(simulated_broker, 8, "t", healthy) == 0
    member = ClassicMember(simulated_broker)
    member.id = "unknown"
    assert await member.heartbeat() == CoordinatorNotAvailable.code
    assert (await member.begin_join()).error_code == CoordinatorNotAvailable.code
    assert await commit(simulated_broker, 8) == CoordinatorNotAvailable.code
    assert await delete_group(simulated_broker) == CoordinatorNotAvailable.code
    assert (await describe(simulated_broker)).error_code == CoordinatorNotAvailable.code
    requested = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    assert (
        await simulated_broker.send(OffsetFetchRequest(group_id=GROUP, topics=requested), 7)
    ).error_code == CoordinatorNotAvailable.code
    groups = [OffsetFetchRequestGroup(group_id=GROUP), OffsetFetchRequestGroup(group_id=healthy)]
    response = await simulated_broker.send(OffsetFetchRequest(groups=groups), 8)
    assert [answer.error_code for answer in response.groups] == [CoordinatorNotAvailable.code, 0]


# Growing old


async def test_offsets_of_a_group_without_members_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_minutes="10", offsets_retention_check_interval_ms="1000")
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    await simulated_broker.pass_time(9 * MINUTE)
    assert await committed(simulated_broker) == (1, "")
    await simulated_broker.pass_time(2 * MINUTE)
    assert await committed(simulated_broker) == (-1, "")
    assert await listed(simulated_broker) == {}
    simulated_broker.kill(keep_page_cache=False)
    await back(simulated_broker)
    assert await committed(simulated_broker) == (-1, "")


async def test_offsets_that_members_use_do_not_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker, "t")
    await member.enter()
    await member.commit(1)
    for _ in range(40):
        await simulated_broker.pass_time(4)
        assert await member.heartbeat() == 0
    assert await committed(simulated_broker) == (1, "")
    await member.leave()
    await simulated_broker.pass_time(30)
    assert await committed(simulated_broker) == (1, ""), "the time counts from when the group became empty"
    await simulated_broker.pass_time(60)
    assert await committed(simulated_broker) == (-1, "")


async def test_an_empty_group_without_commits_is_removed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_check_interval_ms="1000")
    member = ClassicMember(simulated_broker)
    await member.enter()
    await member.leave()
    await simulated_broker.pass_time(5)
    assert await listed(simulated_broker) == {}


async def test_a_pending_member_does_not_expire_with_its_group(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_check_interval_ms="1000")
    member = ClassicMember(simulated_broker)
    response = await member.begin_join(5)
    assert response.error_code == MemberIdRequired.code
    member.id = response.member_id
    await simulated_broker.pass_time(3)
    assert (await member.join()).error_code == 0


async def test_offsets_of_a_deleted_topic_are_removed(simulated_broker: SimulatedBroker) -> None:
    for name in ("t", "u"):
        await simulated_broker.create_topic(name)
        await commit(simulated_broker, 1, name)
    await simulated_broker.delete_topic("t")
    assert topics_of(simulated_broker) == ["u"]
    simulated_broker.kill()
    await back(simulated_broker)
    assert topics_of(simulated_broker) == ["u"]


# A log that takes no writes


def fail_offsets_log(
    simulated_broker: SimulatedBroker, operation: str, number: int = errno.EIO, times: int = 1
) -> None:
    topic_id = simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS).id
    for _ in range(times):
        simulated_broker.host.disk.fail_next(operation, f"*{topic_id.hex}*.log", number)  # type: ignore[arg-type]


async def test_members_get_a_retriable_error_when_the_coordinator_is_unavailable(
    simulated_broker: SimulatedBroker,
) -> None:
    """Storage errors mean nothing to a consumer: Java's would give up."""
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.join()
    fail_offsets_log(simulated_broker, "sync")
    assert (await member.sync({member.id: b"all"})).error_code == CoordinatorNotAvailable.code
    assert await commit(simulated_broker, 1, "t", GROUP) in (CoordinatorNotAvailable.code, UnknownMemberId.code)


@pytest.mark.parametrize("operation", ["append", "sync"])
async def test_a_commit_that_cannot_be_stored_gets_a_retriable_error(
    simulated_broker: SimulatedBroker, operation: str
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    fail_offsets_log(simulated_broker, operation)
    assert await commit(simulated_broker, 2) == CoordinatorNotAvailable.code


async def test_a_commit_succeeds_after_one_was_rejected_by_a_full_disk(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    fail_offsets_log(simulated_broker, "append", errno.ENOSPC)
    assert await commit(simulated_broker, 2) == CoordinatorNotAvailable.code
    assert await committed(simulated_broker) == (1, "")
    assert await commit(simulated_broker, 2) == 0


async def test_a_join_can_be_retried_after_a_full_disk(simulated_broker: SimulatedBroker) -> None:
    simulated_broker.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    member = ClassicMember(simulated_broker)
    assert (await member.join(3)).error_code == CoordinatorNotAvailable.code
    assert (await member.join(3)).error_code == 0


async def test_a_group_stays_if_its_deletion_cannot_be_stored(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    fail_offsets_log(simulated_broker, "append", errno.ENOSPC)
    assert await delete_group(simulated_broker) == CoordinatorNotAvailable.code
    assert await committed(simulated_broker) == (1, "")
    member = ClassicMember(simulated_broker)
    assert (await member.join()).error_code == 0


async def test_a_topic_is_deleted_even_if_its_offsets_cannot_be_removed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    fail_offsets_log(simulated_broker, "append", errno.ENOSPC)
    await simulated_broker.delete_topic("t")
    assert simulated_broker.broker.catalogue.find("t") is None
    assert all(
        topic_id == simulated_broker.broker.catalogue.topic(CONSUMER_OFFSETS).id
        for topic_id, _ in simulated_broker.broker.store.logs
    )


async def test_a_full_disk_does_not_end_the_broker_when_offsets_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    fail_offsets_log(simulated_broker, "append", errno.ENOSPC, times=3)
    await simulated_broker.pass_time(2 * MINUTE)
    assert await committed(simulated_broker) == (-1, "")


# Going down


async def test_waiting_requests_get_a_response_when_the_broker_stops(simulated_broker: SimulatedBroker) -> None:
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    await member.enter()
    joining = other.begin_join(3)
    await simulated_broker.pass_time(1)
    assert not joining.done()
    simulated_broker.broker.complete_waiting_requests()
    assert (await joining).error_code == CoordinatorNotAvailable.code
    assert await member.heartbeat() == CoordinatorNotAvailable.code
    assert (await ClassicMember(simulated_broker, group="new").begin_join(3)).error_code == CoordinatorNotAvailable.code
    assert (
        await simulated_broker.send(HeartbeatRequest(group_id="nobody's"), 4)
    ).error_code == CoordinatorNotAvailable.code


async def test_a_group_is_unchanged_after_a_clean_restart(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await member.heartbeat() == 0
