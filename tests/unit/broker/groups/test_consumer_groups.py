"""Groups of the consumer protocol in a whole broker: returned state survives a crash."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.admin.test_config_admin import SET, change
from tests.unit.broker.groups.classic_members import (
    GROUP,
    ClassicMember,
    commit,
    committed,
    delete_group,
    describe,
    listed,
)
from tests.unit.broker.groups.consumer_members import ConsumerMember, describe_consumers, settle
from tests.unit.broker.groups.test_group_configs import GROUP_TYPE
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupNotEmpty,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
)

SESSION_SECONDS = 45.0
MINUTE = 60.0


async def test_members_share_the_partitions_as_they_join_and_leave(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 4)
    one, two = ConsumerMember(simulated_broker, "m1", "t"), ConsumerMember(simulated_broker, "m2", "t")
    response = await one.beat()
    assert (response.error_code, response.member_epoch, response.heartbeat_interval_ms) == (0, 1, 5000)
    assert one.indexes == [0, 1, 2, 3]
    await settle(one, two)
    assert sorted(one.indexes + two.indexes) == [0, 1, 2, 3]
    assert len(one.indexes) == 2
    assert await two.leave() == 0
    await settle(one)
    assert one.indexes == [0, 1, 2, 3]


async def test_version_0_gets_a_member_id(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ConsumerMember(simulated_broker, "", "t")
    assert (await member.beat(version=0)).error_code == 0
    assert len(member.id) == 36
    assert (await member.beat(version=0)).error_code == 0
    rejected = await ConsumerMember(simulated_broker, "", "t").beat(version=1)
    assert (rejected.error_code, rejected.error_message) == (InvalidRequest.code, "MemberId can't be empty.")


async def test_a_member_can_select_an_assignor_and_a_regular_expression(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t1", 2)
    await simulated_broker.create_topic("t2", 2)
    one = ConsumerMember(simulated_broker, "m1", subscribed_topic_regex="t.*", server_assignor="range")
    two = ConsumerMember(simulated_broker, "m2", subscribed_topic_regex="t.*", server_assignor="range")
    await settle(one, two)
    assert {tuple(one.indexes), tuple(two.indexes)} == {(0, 0), (1, 1)}
    described = await describe_consumers(simulated_broker)
    assert described.assignor_name == "range"
    assert {member.subscribed_topic_regex for member in described.members} == {"t.*"}
    other = ConsumerMember(simulated_broker, "m3", "t1", group="others")
    assert (await other.beat(server_assignor="best")).error_code == UnsupportedAssignor.code
    assert (await other.beat(subscribed_topic_regex="(")).error_code == InvalidRegularExpression.code
    assert "others" not in await listed(simulated_broker)


async def test_a_group_is_described_and_listed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    one, two = ConsumerMember(simulated_broker, "m1", "t", instance_id="i"), ConsumerMember(simulated_broker, "m2", "t")
    await settle(one)
    assert (await two.beat()).error_code == 0
    described = await describe_consumers(simulated_broker)
    assert (described.error_code, described.group_state) == (0, "Reconciling")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (2, 2, "uniform")
    first = described.members[0]
    assert (first.member_id, first.instance_id, first.member_epoch, first.member_type) == ("m1", "i", 1, 1)
    assert (first.client_id, first.client_host, first.subscribed_topic_names) == ("tester", "/10.0.0.1", ["t"])
    assert [(part.topic_name, part.partitions) for part in first.assignment.topic_partitions] == [("t", [0, 1])]
    assert len(first.target_assignment.topic_partitions[0].partitions) == 1
    assert await listed(simulated_broker, types_filter=["consumer"]) == {GROUP: "Reconciling"}
    assert await listed(simulated_broker, states_filter=["reconciling"]) == {GROUP: "Reconciling"}
    assert await listed(simulated_broker, types_filter=["classic"]) == {}
    await settle(one, two)
    assert await listed(simulated_broker) == {GROUP: "Stable"}


async def test_each_kind_of_group_is_described_by_its_own_request(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await ConsumerMember(simulated_broker, "m1", "t").beat()
    seen = await describe(simulated_broker)
    assert (seen.error_code, seen.error_message) == (GroupIdNotFound.code, f"Group {GROUP} is not a classic group.")
    await ClassicMember(simulated_broker, "t", group="classic").enter()
    described = await describe_consumers(simulated_broker, "classic")
    assert (described.error_code, described.error_message) == (
        GroupIdNotFound.code,
        "Group classic is not a consumer group.",
    )
    assert (await describe_consumers(simulated_broker, "none")).error_code == GroupIdNotFound.code


async def test_a_member_expires_after_its_session_timeout(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    one, two = ConsumerMember(simulated_broker, "m1", "t"), ConsumerMember(simulated_broker, "m2", "t")
    await settle(one, two)
    for _ in range(10):
        await simulated_broker.pass_time(SESSION_SECONDS / 9)
        assert (await two.beat()).error_code == 0
    assert two.indexes == [0, 1]
    assert (await one.beat()).error_code == UnknownMemberId.code


async def test_a_group_may_configure_its_session_timeout_and_heartbeat_interval(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.restart(
        group_consumer_min_session_timeout_ms="1000", group_consumer_min_heartbeat_interval_ms="100"
    )
    await simulated_broker.create_topic("t", 2)
    one, two = ConsumerMember(simulated_broker, "m1", "t"), ConsumerMember(simulated_broker, "m2", "t")
    await settle(one, two)
    session, interval = ("consumer.session.timeout.ms", SET, "6000"), ("consumer.heartbeat.interval.ms", SET, "500")
    assert await change(simulated_broker, GROUP_TYPE, GROUP, session, interval) == 0
    assert (await one.beat()).heartbeat_interval_ms == 500
    for _ in range(5):
        await simulated_broker.pass_time(2)
        assert (await two.beat()).error_code == 0
    assert two.indexes == [0, 1]
    assert (await one.beat()).error_code == UnknownMemberId.code
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert (await two.beat()).heartbeat_interval_ms == 500
    await simulated_broker.pass_time(7)
    assert await listed(simulated_broker) == {GROUP: "Empty"}


async def test_a_topic_that_grows_is_noticed_with_the_next_heartbeat(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 1)
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await simulated_broker.host.start(simulated_broker.broker.catalogue.add_partitions("t", 3), "grow")
    await settle(member)
    assert member.indexes == [0, 1, 2]


# Two protocols


async def test_requests_of_the_other_protocol_are_rejected(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await ConsumerMember(simulated_broker, "m1", "t").beat()
    classic = ClassicMember(simulated_broker, "t")
    classic.id, classic.generation = "m1", 1
    assert await classic.heartbeat() == UnknownMemberId.code
    assert (await classic.sync()).error_code == UnknownMemberId.code
    assert await classic.leave() == UnknownMemberId.code
    assert (
        await ConsumerMember(simulated_broker, "m1", "t", group="none").beat(member_epoch=1)
    ).error_code == GroupIdNotFound.code
    assert await ConsumerMember(simulated_broker, "m1", "t", group="none").leave() == GroupIdNotFound.code


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    simulated_broker: SimulatedBroker, restarts: bool
) -> None:
    async def pause() -> None:
        if restarts:
            await simulated_broker.restart()
            await simulated_broker.pass_time(1)

    await simulated_broker.create_topic("t")
    classic, newer = ClassicMember(simulated_broker, "t"), ConsumerMember(simulated_broker, "m1", "t")
    await classic.enter()
    assert await classic.commit(5) == 0
    await classic.leave()
    await pause()
    assert (await newer.beat()).error_code == 0
    await pause()
    assert (
        await listed(simulated_broker, types_filter=["consumer"]) == {GROUP: "Stable"} == await listed(simulated_broker)
    )
    assert await committed(simulated_broker) == (5, "")
    assert await newer.commit(6) == 0
    await newer.leave()
    await pause()
    assert (
        await listed(simulated_broker, types_filter=["consumer"]) == {GROUP: "Empty"} == await listed(simulated_broker)
    )
    classic = ClassicMember(simulated_broker, "t")
    await classic.enter()
    await pause()
    assert (
        await listed(simulated_broker, types_filter=["classic"]) == {GROUP: "Stable"} == await listed(simulated_broker)
    )
    assert await committed(simulated_broker) == (6, "")


async def test_a_group_that_changed_its_protocol_leaves_no_records_of_the_former_one(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    classic, newer = ClassicMember(simulated_broker, "t"), ConsumerMember(simulated_broker, "m1", "t")
    await classic.enter()
    await classic.leave()
    await settle(newer)
    await newer.leave()
    assert await delete_group(simulated_broker) == 0
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {}


# Offsets


async def test_commits_are_for_members_of_the_right_epoch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    assert await member.commit(1) == 0
    assert await member.commit(2, member_id="m2") == UnknownMemberId.code
    assert await member.commit(2, generation_id_or_member_epoch=7) == StaleMemberEpoch.code
    assert await commit(simulated_broker, 2) == UnknownMemberId.code
    assert await committed(simulated_broker) == (1, "")
    groups = simulated_broker.broker.coordinator.of(GROUP)
    groups.check_fetch(GROUP, None, -1)
    groups.check_fetch(GROUP, "m1", 1)
    groups.check_fetch("none", "m1", 1)
    with pytest.raises(StaleMemberEpoch):
        groups.check_fetch(GROUP, "m1", 2)
    with pytest.raises(UnknownMemberId):
        groups.check_fetch(GROUP, "m2", 1)
    await member.leave()
    assert await commit(simulated_broker, 3) == 0
    assert await listed(simulated_broker) == {GROUP: "Empty"}


async def test_a_group_is_deleted_with_its_offsets_when_it_is_empty(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await member.commit(1)
    assert await delete_group(simulated_broker) == GroupNotEmpty.code
    await member.leave()
    assert await delete_group(simulated_broker) == 0
    assert await delete_group(simulated_broker) == GroupIdNotFound.code
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {}
    assert await committed(simulated_broker) == (-1, "")


async def test_an_empty_group_is_removed_when_its_offsets_have_expired(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(offsets_retention_minutes="2", offsets_retention_check_interval_ms="1000")
    await simulated_broker.create_topic("t")
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await member.commit(1)
    for _ in range(12):
        await simulated_broker.pass_time(MINUTE / 4)
        assert (await member.beat()).error_code == 0
    assert await committed(simulated_broker) == (1, ""), "what members use does not grow old"
    await member.leave()
    await simulated_broker.pass_time(2 * MINUTE)
    assert await committed(simulated_broker) == (-1, "")
    assert await listed(simulated_broker) == {}
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {}


# Durability


@pytest.mark.parametrize("end", ["stop", "kill", "power cut"])
async def test_members_survive_every_kind_of_restart(simulated_broker: SimulatedBroker, end: str) -> None:
    await simulated_broker.create_topic("t", 4)
    one, two = ConsumerMember(simulated_broker, "m1", "t"), ConsumerMember(simulated_broker, "m2", "t", instance_id="i")
    await settle(one, two)
    before = one.epoch, two.epoch, one.owned, two.owned
    described = await describe_consumers(simulated_broker)
    if end == "stop":
        await simulated_broker.close()
    else:
        simulated_broker.kill(keep_page_cache=end == "kill")
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await describe_consumers(simulated_broker) == described
    await settle(one, two)
    assert (one.epoch, two.epoch, one.owned, two.owned) == before
    await simulated_broker.pass_time(SESSION_SECONDS + 1)
    assert await listed(simulated_broker) == {GROUP: "Empty"}


async def test_an_assignment_is_returned_only_when_it_is_durable(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await ConsumerMember(simulated_broker, "m0", "t", group="others").beat()
    simulated_broker.host.disk.delay_seconds = (0.1, 0.2)
    member = ConsumerMember(simulated_broker, "m1", "t")
    joining = member.begin_beat()
    await asyncio.sleep(0.01)
    assert not joining.done()
    await member.beat()
    assert member.indexes == [0, 1]
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert (await member.beat()).error_code == 0
    joining.cancel()


async def test_a_change_that_cannot_be_stored_has_no_effect(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    one, two = ConsumerMember(simulated_broker, "m1", "t"), ConsumerMember(simulated_broker, "m2", "t")
    await settle(one)
    before = await describe_consumers(simulated_broker)
    simulated_broker.host.disk.fail_next("append", "*.log")
    assert (await two.beat()).error_code == CoordinatorNotAvailable.code
    assert await describe_consumers(simulated_broker) == before


async def test_members_get_a_loading_error_until_the_log_is_loaded(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await simulated_broker.close()
    simulated_broker.host.disk.cold_chance = 1.0
    await simulated_broker.open()
    assert (await member.beat()).error_code in (0, CoordinatorLoading.code)
    await simulated_broker.pass_time(1)
    assert (await member.beat()).error_code == 0
