"""ShareFetch and ShareAcknowledge: delivery, sessions, and rejected requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.leadership_changes import become_follower, become_leader
from tests.unit.broker.queues.queue_support import configure
from tests.unit.broker.share_groups.share_members import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    TOPIC,
    AcquiredRecord,
    ShareMember,
    ack_code,
    code_of,
    offsets,
    responses_by_partition,
    taken,
)
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker

from headrace.broker.share_groups.share_leases import SETTLEMENTS_MAX
from headrace.machines.share_groups.share_sessions import ShareSessions
from headrace.model.errors import (
    InvalidRecordState,
    InvalidRequest,
    InvalidShareSessionEpoch,
    NotLeader,
    ShareSessionLimitReached,
    ShareSessionNotFound,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.share_groups import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic

LOCK_SECONDS = 30.0


async def prepare(
    simulated_broker: SimulatedBroker, count: int = 10, partitions: int = 1, **configs: str
) -> ShareMember:
    """Create a topic with messages in each partition, and a member whose group begins with the first ones."""
    await simulated_broker.create_topic(TOPIC, partitions)
    await configure(simulated_broker, GROUP, share_auto_offset_reset="earliest", **configs)
    first = ShareMember(simulated_broker, "first")
    await first.take(*range(partitions))  # creates the group's state in every partition
    await first.fetch(epoch=-1)
    for partition in range(partitions):
        if count:
            await produce(simulated_broker, TOPIC, *(b"%d" % number for number in range(count)), partition=partition)
    return ShareMember(simulated_broker)


async def test_the_first_fetch_of_a_group_returns_one_partition_and_the_next_the_other(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    await configure(simulated_broker, GROUP, share_auto_offset_reset="earliest")
    for partition in range(2):
        await produce(simulated_broker, TOPIC, b"a", b"b", partition=partition)
    member = ShareMember(simulated_broker)
    found = [{one.partition for one in await member.take(0, 1)}, {one.partition for one in await member.take()}]
    assert sorted(map(list, found)) == [[0], [1]], "as in Kafka; librdkafka 2.15, test 0179"


async def test_settled_messages_are_not_delivered_again(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 3)
    response = await member.fetch(0)
    assert taken(response) == [
        AcquiredRecord(0, 0, b"0", 1),
        AcquiredRecord(0, 1, b"1", 1),
        AcquiredRecord(0, 2, b"2", 1),
    ]
    assert response.acquisition_lock_timeout_ms == 30_000
    response = await member.acknowledge({0: [(0, 1, ACCEPT)]})
    assert (code_of(response), response.acquisition_lock_timeout_ms) == (0, 30_000)
    await simulated_broker.pass_time(LOCK_SECONDS + 1)
    assert await member.take() == [AcquiredRecord(0, 2, b"2", 2)]


async def test_members_never_share_a_message(simulated_broker: SimulatedBroker) -> None:
    await prepare(simulated_broker, 10)
    members = [ShareMember(simulated_broker, f"m{number}") for number in range(3)]
    found = [await member.take(0, count=4) for member in members]
    assert [offsets(messages) for messages in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert await members[0].take() == []


async def test_a_group_begins_at_the_end_by_default(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    await produce(simulated_broker, TOPIC, b"old")
    member = ShareMember(simulated_broker)
    assert await member.take(0) == []
    await produce(simulated_broker, TOPIC, b"new")
    assert await member.take() == [AcquiredRecord(0, 1, b"new", 1)]


async def test_a_fetch_waits_for_messages_and_one_message_wakes_one_member(simulated_broker: SimulatedBroker) -> None:
    one, two = await prepare(simulated_broker, 0), ShareMember(simulated_broker, "m2")
    await one.take(0)
    await two.take(0)
    fetches = [member.begin_fetch(wait_ms=5000) for member in (one, two)]
    await simulated_broker.pass_time(1)
    assert not any(fetch.done() for fetch in fetches)
    await produce(simulated_broker, TOPIC, b"a")
    await simulated_broker.pass_time(0.1)
    assert [fetch.done() for fetch in fetches] == [True, False]
    assert offsets(taken(await fetches[0])) == [0]
    await simulated_broker.pass_time(5)
    assert taken(await fetches[1]) == []


async def test_returned_messages_wake_a_fetch(simulated_broker: SimulatedBroker) -> None:
    one, two = await prepare(simulated_broker, 1), ShareMember(simulated_broker, "m2")
    await one.take(0)
    await two.take(0)
    fetch = two.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(LOCK_SECONDS - 1)
    assert not fetch.done()
    await simulated_broker.pass_time(1.5)
    assert taken(await fetch) == [AcquiredRecord(0, 0, b"0", 2)]


async def test_another_request_of_the_member_ends_its_waiting_fetch(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 1)
    await member.take(0)
    fetch = member.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    assert await member.settle(0, 0) == 0
    await simulated_broker.pass_time(0.1)
    assert fetch.done()
    assert taken(await fetch) == []
    fetch = member.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    await member.fetch()
    await simulated_broker.pass_time(0.1)
    assert fetch.done()


# Settling


async def test_each_message_of_a_range_can_have_its_own_acknowledge_type(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 6, headrace_dead_letters_enable="false")
    await member.take(0)
    assert await member.settle(0, 5, [ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RELEASE]) == 0
    assert await member.take() == [AcquiredRecord(0, 2, b"2", 2), AcquiredRecord(0, 5, b"5", 2)]


async def test_a_fetch_settles_before_it_leases_and_forgets_partitions(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 4, partitions=2)
    assert len(await member.take(0, 1, count=100)) == 8
    response = await member.fetch(acks={0: [(0, 1, RELEASE), (2, 3, ACCEPT)]})
    assert ack_code(response) == 0
    assert [(one.offset, one.delivery) for one in taken(response)] == [(0, 2), (1, 2)]
    response = await member.fetch(acks={0: [(0, 1, RELEASE)]}, forgotten=[0])
    assert (ack_code(response), taken(response)) == (0, [])
    assert offsets(await member.take(0)) == [0, 1]


async def test_the_response_has_the_acknowledge_result_of_every_partition(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 4, partitions=2)
    await member.take(0, 1)
    response = await member.fetch(acks={0: [(0, 3, ACCEPT)], 1: [(0, 9, ACCEPT)], 7: [(0, 0, ACCEPT)]})
    codes = {index: data.acknowledge_error_code for index, data in responses_by_partition(response).items()}
    assert codes == {0: 0, 1: InvalidRecordState.code, 7: UnknownTopicOrPartition.code}
    assert code_of(await member.acknowledge({1: [(0, 3, ACCEPT)]}), 1) == 0


@pytest.mark.parametrize(
    "batches",
    [
        [(3, 2, ACCEPT)],
        [(-1, 0, ACCEPT)],
        [(2, 3, ACCEPT), (0, 1, ACCEPT)],
        [(0, 2, ACCEPT), (2, 3, ACCEPT)],
        [(0, 3, [])],
        [(0, 3, [ACCEPT, ACCEPT])],
        [(0, 0, 5)],
        [(0, 1, [ACCEPT, -1])],
        [(0, 0, RENEW)],
    ],
)
async def test_invalid_acknowledgements_are_rejected_and_settle_nothing(
    simulated_broker: SimulatedBroker, batches: list[tuple[int, int, int | list[int]]]
) -> None:
    member = await prepare(simulated_broker, 4)
    await member.take(0)
    assert code_of(await member.acknowledge({0: batches})) == InvalidRequest.code
    assert ack_code(await member.fetch(acks={0: batches})) == InvalidRequest.code
    assert await member.settle(0, 3) == 0


async def test_the_number_of_acknowledge_type_changes_per_request_is_limited(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 2)
    await member.take(0)
    many = [ACCEPT, RELEASE] * SETTLEMENTS_MAX
    assert await member.settle(0, len(many) - 1, many) == InvalidRequest.code
    assert await member.settle(0, 1) == 0


async def test_an_expired_lease_cannot_be_settled(simulated_broker: SimulatedBroker) -> None:
    member, other = await prepare(simulated_broker, 2), ShareMember(simulated_broker, "m2")
    await member.take(0)
    await other.take(0)
    assert await other.settle(0, 1) == InvalidRecordState.code
    await simulated_broker.pass_time(LOCK_SECONDS + 0.001)
    assert await member.settle(0, 1) == InvalidRecordState.code
    assert offsets(await other.take()) == [0, 1]


async def test_messages_that_were_never_leased_cannot_be_settled(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 0, partitions=2)
    await member.fetch()
    assert await member.settle(0, 0) == InvalidRecordState.code


# Renewing


async def test_a_renewed_lease_lasts_longer(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 2)
    await member.take(0)
    await simulated_broker.pass_time(20)
    assert await member.settle(0, 0, RENEW, is_renew_ack=True) == 0
    await simulated_broker.pass_time(20)
    assert offsets(await member.take()) == [1]
    assert await member.settle(0, 0) == 0


async def test_a_renewing_fetch_leases_nothing_and_must_have_no_limits(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 4)
    await member.take(0, count=2)
    acks = {0: [(0, 1, [RENEW, ACCEPT])]}
    rejected = await member.fetch(acks=acks, is_renew_ack=True)
    assert (rejected.error_code, ack_code(rejected)) == (InvalidRequest.code, InvalidRequest.code)
    member.session_epoch -= 1
    none = {"max_bytes": 0, "min_bytes": 0, "count": 0, "wait_ms": 0}
    response = await member.fetch(acks=acks, is_renew_ack=True, **none)
    assert (ack_code(response), taken(response)) == (0, [])


async def test_renewal_can_be_disabled_for_a_group(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 1, share_renew_acknowledge_enable="false")
    await member.take(0)
    assert await member.settle(0, 0, RENEW, is_renew_ack=True) == InvalidRecordState.code
    assert await member.settle(0, 0) == 0


# Limits


@pytest.mark.parametrize("mode", [0, 1])
async def test_max_records_is_never_exceeded(simulated_broker: SimulatedBroker, mode: int) -> None:
    member = await prepare(simulated_broker, 10)
    assert offsets(await member.take(0, count=3, share_acquire_mode=mode)) == [0, 1, 2]
    assert await member.take(count=0) == []
    assert await member.take(max_bytes=0) == []
    assert offsets(await member.take(count=100)) == [3, 4, 5, 6, 7, 8, 9]


async def test_a_full_partition_does_not_starve_the_others(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 10, partitions=3)
    await member.take(0, 1, 2, count=0)
    partitions = [one.partition for _ in range(6) for one in await member.take(count=2)]
    assert sorted(partitions) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


async def test_messages_and_bytes_are_limited_over_all_partitions(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 4, partitions=2)
    assert len(await member.take(0, 1, count=6)) == 6
    other = ShareMember(simulated_broker, "m2", group="others")
    await configure(simulated_broker, "others", share_auto_offset_reset="earliest")
    assert len(await other.take(0, 1, max_bytes=1)) == 4


async def test_the_delivery_count_is_returned(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 1, share_delivery_count_limit="4")
    deliveries = []
    for _ in range(3):
        (one,) = await member.take(0)
        deliveries.append(one.delivery)
        await member.settle(0, 0, RELEASE)
    assert deliveries == [1, 2, 3]


# Sessions


async def test_a_request_with_a_wrong_epoch_is_rejected_and_the_session_stays(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 4)
    await member.take(0, count=2)
    assert (await member.fetch(epoch=5)).error_code == InvalidShareSessionEpoch.code
    rejected = await member.fetch(epoch=0, acks={0: [(0, 0, ACCEPT)]})
    assert (rejected.error_code, ack_code(rejected)) == (InvalidRequest.code, InvalidRequest.code)
    assert (await member.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=0)).error_code == InvalidShareSessionEpoch.code
    assert (await member.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=7)).error_code == InvalidShareSessionEpoch.code
    assert await member.settle(0, 0, epoch=1) == 0
    assert offsets(await member.take(epoch=2)) == [2, 3]


@pytest.mark.parametrize("epoch", [3, -1])
async def test_a_session_must_be_opened_first(simulated_broker: SimulatedBroker, epoch: int) -> None:
    member = await prepare(simulated_broker)
    assert (await member.fetch(epoch=epoch)).error_code == ShareSessionNotFound.code
    rejected = await member.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=epoch)
    assert (rejected.error_code, responses_by_partition(rejected)[0].error_code) == (
        ShareSessionNotFound.code,
        ShareSessionNotFound.code,
    )


@pytest.mark.parametrize("fields", [{"group_id": None}, {"group_id": ""}, {"member_id": None}, {"member_id": ""}])
async def test_group_id_and_member_id_are_required(simulated_broker: SimulatedBroker, fields: dict[str, Any]) -> None:
    request = ShareFetchRequest(**{"group_id": GROUP, "member_id": "m", **fields})
    assert (await simulated_broker.send(request, 2)).error_code == InvalidRequest.code


async def test_a_closing_fetch_settles_and_releases_the_other_leases(
    simulated_broker: SimulatedBroker,
) -> None:
    member, other = await prepare(simulated_broker, 4), ShareMember(simulated_broker, "m2")
    await member.take(0)
    response = await member.fetch(epoch=-1, acks={0: [(0, 1, ACCEPT)]})
    assert (ack_code(response), taken(response)) == (0, [])
    assert await other.take(0) == [AcquiredRecord(0, 2, b"2", 2), AcquiredRecord(0, 3, b"3", 2)]
    assert (await member.fetch(epoch=1)).error_code == ShareSessionNotFound.code


async def test_a_closing_acknowledgement_settles_and_releases_the_other_leases(
    simulated_broker: SimulatedBroker,
) -> None:
    member, other = await prepare(simulated_broker, 3), ShareMember(simulated_broker, "m2")
    await member.take(0)
    assert await member.settle(0, 1, epoch=-1) == 0
    assert offsets(await other.take(0)) == [2]


async def test_a_member_keeps_its_leases_in_a_new_session(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 4)
    await member.take(0, count=2)
    assert offsets(await member.take(0, epoch=0)) == [2, 3]
    assert await member.settle(0, 3) == 0


async def test_a_new_session_ends_the_waiting_fetch_of_the_old_one(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 0)
    await member.take(0)
    fetch = member.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    again = member.begin_fetch(0, epoch=0, wait_ms=60_000)
    await simulated_broker.pass_time(1)
    assert fetch.done()
    assert taken(await fetch) == []
    await produce(simulated_broker, TOPIC, b"a")
    assert offsets(taken(await again)) == [0]


async def test_the_number_of_sessions_is_limited(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = simulated_broker.broker.shares.leases
    monkeypatch.setattr(leases, "sessions", ShareSessions(sessions_max=1))
    member = await prepare(simulated_broker)
    await member.take(0)
    assert (await ShareMember(simulated_broker, "m2").fetch(0)).error_code == ShareSessionLimitReached.code


# Members that are gone


async def test_a_lost_connection_releases_the_leases_of_its_member(simulated_broker: SimulatedBroker) -> None:
    member, other = await prepare(simulated_broker, 3), ShareMember(simulated_broker, "m2")
    await member.take(0)
    await member.settle(0, 0)
    await other.take(0)
    fetch = other.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    member.connection.lose()
    await simulated_broker.pass_time(0.1)
    # A message may have caused the failure of the member, so the delivery counts.
    assert taken(await fetch) == [AcquiredRecord(0, 1, b"1", 2), AcquiredRecord(0, 2, b"2", 2)]
    assert (await member.fetch(epoch=2)).error_code == ShareSessionNotFound.code


async def test_a_lost_connection_releases_leases_in_forgotten_partitions(
    simulated_broker: SimulatedBroker,
) -> None:
    member, other = await prepare(simulated_broker, 2, partitions=2), ShareMember(simulated_broker, "m2")
    assert len(await member.take(0, 1)) == 4
    await member.fetch(forgotten=[0])
    member.connection.lose()
    assert len(await other.take(0, 1)) == 4


async def test_a_fetch_of_a_lost_connection_leases_nothing(simulated_broker: SimulatedBroker) -> None:
    member, other = await prepare(simulated_broker, 0), ShareMember(simulated_broker, "m2")
    await member.take(0)
    fetch = member.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    member.connection.lose()
    await produce(simulated_broker, TOPIC, b"a")
    assert await other.take(0) == [AcquiredRecord(0, 0, b"a", 1)]
    assert taken(await fetch) == []


async def test_a_cold_lease_is_released_when_the_connection_is_lost_meanwhile(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 2)
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    fetch = member.begin_fetch(0)
    while not fetch.done() and not simulated_broker.broker.shares.leases._polls:
        await simulated_broker.run_ready_tasks(1)
    member.connection.lose()
    assert taken(await fetch) == []
    simulated_broker.host.disk.cold_chance = 0.0
    assert offsets(await ShareMember(simulated_broker, "m2").take(0)) == [0, 1]


async def test_a_lost_old_connection_does_not_end_the_new_session(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 4)
    await member.take(0, count=2)
    replaced_member, member.connection = member.connection, FakeConnection()
    assert offsets(await member.take(0, epoch=0)) == [2, 3]
    replaced_member.lose()
    assert await member.settle(0, 3) == 0


# Places


async def test_unknown_partitions_fail_and_others_are_served(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 2)
    began = simulated_broker.host.clock.monotonic()
    response = await member.fetch(0, 9, wait_ms=60_000)
    assert {index: data.error_code for index, data in responses_by_partition(response).items()} == {
        0: 0,
        9: UnknownTopicOrPartition.code,
    }
    request = ShareFetchRequest(
        group_id=GROUP,
        member_id="m2",
        max_wait_ms=60_000,
        max_records=1,
        topics=[ShareFetchTopic(topic_id=UUID(int=7), partitions=[ShareFetchPartition(0)])],
    )
    assert code_of(await simulated_broker.send(request, 1)) == UnknownTopicId.code
    assert simulated_broker.host.clock.monotonic() - began < 1.0


async def test_the_end_of_a_leadership_ends_waiting_fetches_and_leases(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 2)
    await member.take(0, count=1)
    fetch = member.begin_fetch(count=1)
    await fetch
    fetch = member.begin_fetch(wait_ms=60_000)
    await simulated_broker.pass_time(1)
    partition = simulated_broker.partition(f"__acks.{TOPIC}")
    become_follower(simulated_broker, partition)
    response = await fetch
    data = responses_by_partition(response)[0]
    assert data.error_code == NotLeader.code
    assert await member.settle(0, 0) == NotLeader.code
    become_leader(simulated_broker, partition)
    await simulated_broker.pass_time(1)
    assert await member.settle(0, 0) == InvalidRecordState.code
    assert offsets(await member.take()) == [0, 1]


async def test_during_a_load_fetches_wait_and_acknowledgements_are_retriable(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await prepare(simulated_broker, 3)
    await member.take(0)
    await member.settle(0, 0)
    partition = simulated_broker.partition(f"__acks.{TOPIC}")
    become_follower(simulated_broker, partition)
    simulated_broker.host.disk.cold_chance = 1.0  # makes the load take a while
    become_leader(simulated_broker, partition)
    response = await member.fetch(acks={0: [(1, 1, ACCEPT)]})
    assert ack_code(response) == NotLeader.code
    assert offsets(taken(response)) == [1, 2]


async def test_a_deleted_topic_is_rejected_although_its_name_exists_again(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 2)
    await member.take(0)
    await simulated_broker.delete_topic(TOPIC)
    await simulated_broker.create_topic(TOPIC)
    response = await member.fetch()
    assert code_of(response) == UnknownTopicId.code
    await produce(simulated_broker, TOPIC, b"new")
    assert offsets(await member.take(0, epoch=0)) == [0]


async def test_the_response_names_the_leader(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 1)
    await member.take(0)
    become_follower(simulated_broker, simulated_broker.partition(TOPIC))
    response = await member.fetch()
    data = responses_by_partition(response)[0]
    assert (data.error_code, data.current_leader.leader_id) == (NotLeader.code, 1)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(1, "broker.example", 9092)]


async def test_version_1_is_served_without_newer_fields(simulated_broker: SimulatedBroker) -> None:
    member = await prepare(simulated_broker, 2)
    assert offsets(taken(await member.fetch(0, version=1))) == [0, 1]
    assert await member.settle(0, 1, version=1) == 0


async def test_broker_settings_are_the_defaults_of_every_group(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.restart(
        group_share_delivery_count_limit="7",
        group_share_heartbeat_interval_ms="700",
        group_share_partition_max_record_locks="3",
        group_share_record_lock_duration_ms="2000",
        group_share_session_timeout_ms="9000",
    )
    member = await prepare(simulated_broker, 10)
    response = await member.fetch(0)
    assert response.acquisition_lock_timeout_ms == 2000
    assert offsets(taken(response)) == [0, 1, 2]
    config = simulated_broker.broker.group_configs.of(GROUP)
    assert config.share_delivery_count_limit == 7
    assert (config.share_heartbeat_interval_ms, config.share_session_timeout_ms) == (700, 9000)
