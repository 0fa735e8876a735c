"""ElectLeaders: the elected leaders, and the result of each partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.broker.registered_partitions import RegisteredPartitions, context
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.broker.controller.partition_requests import ElectionRequests
from headrace.broker.handlers import RequestHandler
from headrace.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import PartitionRecord
from headrace.runtime.inline_start import start_inline
from headrace.wire import apis
from headrace.wire.messages.replicas import ElectLeadersRequest, ElectLeadersTopic

PREFERRED, UNCLEAN = 0, 1
OK = 0

OFFLINE = PartitionRecord(replicas=(1, 2, 3), isr=(1,), leader=-1, leader_epoch=6)


async def elect(
    places: RegisteredPartitions, kind: int, *partitions: tuple[str, int], timeout_ms: int = 1000
) -> dict[tuple[str, int], int]:
    requested = [ElectLeadersTopic(topic, [index]) for topic, index in partitions]
    return codes(await elect_leaders(places, ElectLeadersRequest(kind, requested, timeout_ms)))


async def elect_leaders(places: RegisteredPartitions, request: ElectLeadersRequest) -> Any:
    handler = RequestHandler(apis.ELECT_LEADERS, ElectionRequests(places.catalogue, places.changes).elect)
    return await handler.handle(request, context(2))


def codes(response: Any) -> dict[tuple[str, int], int]:
    assert response.error_code == 0
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


async def test_the_preferred_replica_leads_in_a_new_epoch() -> None:
    places = RegisteredPartitions(1, 2, 3)
    await places.add("t", led_partition(2, 1, 3, first=1))
    assert await elect(places, PREFERRED, ("t", 0)) == {("t", 0): OK}
    record = await places.record("t")
    assert (record.leader, record.leader_epoch, record.leader_broker_epoch) == (1, 6, 1)
    assert record.isr == (1, 2, 3)


async def test_the_current_registry_record_decides_not_the_mirrored_one() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    await places.records.change(places.catalogue.topic("t").id, 0, lambda record: replace(record, isr=(2,)))
    assert await elect(places, PREFERRED, ("t", 0)) == {("t", 0): PreferredLeaderNotAvailable.code}
    assert (await places.record("t")).leader == 2


async def test_nothing_is_elected_where_the_preferred_replica_leads() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(1, 2))
    assert await elect(places, PREFERRED, ("t", 0)) == {("t", 0): ElectionNotNeeded.code}
    assert await places.record("t") == led_partition(1, 2)


async def test_the_response_says_if_the_preferred_replica_cannot_lead() -> None:
    places = RegisteredPartitions(2, 4)
    places.start(3, is_draining=True)
    await places.drain(4)
    await places.add(
        "t",
        led_partition(2, 1, first=1),
        led_partition(2, 3, first=3),
        led_partition(2, 4, first=4),
        led_partition(1, 2),
    )
    requested = [("t", index) for index in range(4)]
    assert await elect(places, PREFERRED, *requested) == dict.fromkeys(requested, PreferredLeaderNotAvailable.code)


async def test_unknown_partitions_get_their_own_errors() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    await places.add("gone", led_partition(2, 1, first=1))
    await places.delete("gone")
    requested = [("t", 0), ("t", 1), ("t", -1), ("never", 0), ("gone", 0)]
    assert await elect(places, PREFERRED, *requested) == {
        ("t", 0): OK,
        ("t", 1): UnknownTopicOrPartition.code,
        ("t", -1): UnknownTopicOrPartition.code,
        ("never", 0): UnknownTopicOrPartition.code,
        ("gone", 0): UnknownTopicOrPartition.code,
    }


async def test_a_request_for_all_partitions_returns_only_those_that_needed_an_election() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("a", led_partition(1, 2), led_partition(2, 1, first=1))
    await places.add("b", led_partition(2, 1))
    await places.add("c", led_partition(2, 3, first=3))
    assert codes(await elect_leaders(places, ElectLeadersRequest(PREFERRED, None))) == {
        ("a", 1): OK,
        ("c", 0): PreferredLeaderNotAvailable.code,
    }
    assert (await places.record("a", 1)).leader == 1


async def test_a_request_for_all_partitions_omits_those_elected_meanwhile() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("a", led_partition(2, 1, first=1))
    await places.records.change(places.catalogue.topic("a").id, 0, lambda record: replace(record, leader=1))
    assert codes(await elect_leaders(places, ElectLeadersRequest(PREFERRED, None))) == {}


async def test_an_unclean_election_elects_a_live_replica_and_records_it() -> None:
    places = RegisteredPartitions(2, 3)
    await places.add("t", OFFLINE, min_insync=2)
    assert await elect(places, UNCLEAN, ("t", 0)) == {("t", 0): OK}
    record = await places.record("t")
    assert (record.leader, record.leader_epoch, record.unclean_epoch) == (2, 7, 7)
    assert (record.isr, record.elr) == ((2,), ())


async def test_an_unclean_election_is_rejected_if_a_replica_leads_or_can_lead_without_loss() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1), OFFLINE)
    assert await elect(places, UNCLEAN, ("t", 0), ("t", 1)) == {
        ("t", 0): ElectionNotNeeded.code,
        ("t", 1): ElectionNotNeeded.code,
    }
    assert await places.record("t", 1) == OFFLINE


async def test_an_unclean_election_needs_a_live_replica() -> None:
    places = RegisteredPartitions(4)
    await places.add("t", OFFLINE)
    assert await elect(places, UNCLEAN, ("t", 0)) == {("t", 0): EligibleLeadersNotAvailable.code}


async def test_an_unclean_election_is_logged_with_its_principal(caplog: pytest.LogCaptureFixture) -> None:
    places = RegisteredPartitions(2)
    await places.add("t", OFFLINE)
    await elect(places, UNCLEAN, ("t", 0))
    assert "unclean" in caplog.text
    assert "'t'" in caplog.text
    caplog.clear()
    await elect(places, PREFERRED, ("t", 0))
    assert not caplog.records


async def test_an_unknown_election_type_is_rejected() -> None:
    places = RegisteredPartitions(1)
    assert (await elect_leaders(places, ElectLeadersRequest(2, []))).error_code == InvalidRequest.code


async def test_partitions_not_changed_in_time_return_request_timed_out() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    assert await elect(places, PREFERRED, ("t", 0), timeout_ms=0) == {("t", 0): RequestTimedOut.code}


async def test_a_protocol_may_start_the_handler_outside_of_a_task() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Any] = loop.create_future()

    def open_door() -> None:
        try:
            started.set_result(start_inline(elect(places, PREFERRED, ("t", 0)), loop))
        except RuntimeError as error:
            started.set_exception(error)

    loop.call_soon(open_door)
    assert await (await started) == {("t", 0): OK}


async def test_an_unavailable_registry_gives_a_retriable_error() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    places.registry.unavailable = True
    assert await elect(places, PREFERRED, ("t", 0)) == {("t", 0): RequestTimedOut.code}


async def test_a_colocated_partition_is_led_by_the_leader_of_its_owner() -> None:
    places = RegisteredPartitions(1, 2)
    await places.add("t", led_partition(2, 1, first=1))
    await places.add("__acks.t", led_partition(2, 1, first=1), owner=places.catalogue.topic("t").id)
    assert await elect(places, PREFERRED, ("__acks.t", 0)) == {("__acks.t", 0): ElectionNotNeeded.code}
    assert codes(await elect_leaders(places, ElectLeadersRequest(PREFERRED, None, 1000))) == {("t", 0): OK}
