"""ElectLeaders: the elected leaders, and the result of each partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.broker.registered_partitions import RegisteredPartitions, context
from tests.unit.client.admin.administered_cluster import led_partition

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
from headrace.registry.topics import change_partition
from headrace.runtime.inline_start import start_inline
from headrace.wire import apis
from headrace.wire.messages.replicas import ElectLeadersRequest, ElectLeadersTopic

PREFERRED, UNCLEAN = 0, 1
OK = 0

OFFLINE = PartitionRecord(replicas=(1, 2, 3), isr=(1,), leader=-1, leader_epoch=6)


async def elect(
    registered_partitions: RegisteredPartitions, kind: int, *partitions: tuple[str, int], timeout_ms: int = 1000
) -> dict[tuple[str, int], int]:
    requested = [ElectLeadersTopic(topic, [index]) for topic, index in partitions]
    return codes(await elect_leaders(registered_partitions, ElectLeadersRequest(kind, requested, timeout_ms)))


async def elect_leaders(registered_partitions: RegisteredPartitions, request: ElectLeadersRequest) -> Any:
    handler = RequestHandler(apis.ELECT_LEADERS, registered_partitions.requests.elect_leaders)
    return await handler.handle(request, context(2))


def codes(response: Any) -> dict[tuple[str, int], int]:
    assert response.error_code == 0
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


async def test_the_preferred_replica_leads_in_a_new_epoch() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(2, 1, 3, first=1))
    assert await elect(registered_partitions, PREFERRED, ("t", 0)) == {("t", 0): OK}
    record = await registered_partitions.record("t")
    assert (record.leader, record.leader_epoch, record.leader_broker_epoch) == (1, 6, 1)
    assert record.isr == (1, 2, 3)


async def test_the_current_registry_record_decides_not_the_mirrored_one() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    await change_partition(
        registered_partitions.registry,
        registered_partitions.catalogue.topic("t").id,
        0,
        lambda record: replace(record, isr=(2,)),
    )
    assert await elect(registered_partitions, PREFERRED, ("t", 0)) == {("t", 0): PreferredLeaderNotAvailable.code}
    assert (await registered_partitions.record("t")).leader == 2


async def test_nothing_is_elected_where_the_preferred_replica_leads() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(1, 2))
    assert await elect(registered_partitions, PREFERRED, ("t", 0)) == {("t", 0): ElectionNotNeeded.code}
    assert await registered_partitions.record("t") == led_partition(1, 2)


async def test_the_response_says_if_the_preferred_replica_cannot_lead() -> None:
    registered_partitions = RegisteredPartitions(2, 4)
    registered_partitions.start(3, is_draining=True)
    await registered_partitions.drain(4)
    await registered_partitions.add(
        "t",
        led_partition(2, 1, first=1),
        led_partition(2, 3, first=3),
        led_partition(2, 4, first=4),
        led_partition(1, 2),
    )
    requested = [("t", index) for index in range(4)]
    assert await elect(registered_partitions, PREFERRED, *requested) == dict.fromkeys(
        requested, PreferredLeaderNotAvailable.code
    )


async def test_unknown_partitions_get_their_own_errors() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    await registered_partitions.add("gone", led_partition(2, 1, first=1))
    await registered_partitions.delete("gone")
    requested = [("t", 0), ("t", 1), ("t", -1), ("never", 0), ("gone", 0)]
    assert await elect(registered_partitions, PREFERRED, *requested) == {
        ("t", 0): OK,
        ("t", 1): UnknownTopicOrPartition.code,
        ("t", -1): UnknownTopicOrPartition.code,
        ("never", 0): UnknownTopicOrPartition.code,
        ("gone", 0): UnknownTopicOrPartition.code,
    }


async def test_a_request_for_all_partitions_returns_only_those_that_needed_an_election() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("a", led_partition(1, 2), led_partition(2, 1, first=1))
    await registered_partitions.add("b", led_partition(2, 1))
    await registered_partitions.add("c", led_partition(2, 3, first=3))
    assert codes(await elect_leaders(registered_partitions, ElectLeadersRequest(PREFERRED, None))) == {
        ("a", 1): OK,
        ("c", 0): PreferredLeaderNotAvailable.code,
    }
    assert (await registered_partitions.record("a", 1)).leader == 1


async def test_a_request_for_all_partitions_omits_those_elected_meanwhile() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("a", led_partition(2, 1, first=1))
    await change_partition(
        registered_partitions.registry,
        registered_partitions.catalogue.topic("a").id,
        0,
        lambda record: replace(record, leader=1),
    )
    assert codes(await elect_leaders(registered_partitions, ElectLeadersRequest(PREFERRED, None))) == {}


async def test_an_unclean_election_elects_a_live_replica_and_records_it() -> None:
    registered_partitions = RegisteredPartitions(2, 3)
    await registered_partitions.add("t", OFFLINE, min_insync=2)
    assert await elect(registered_partitions, UNCLEAN, ("t", 0)) == {("t", 0): OK}
    record = await registered_partitions.record("t")
    assert (record.leader, record.leader_epoch, record.unclean_epoch) == (2, 7, 7)
    assert (record.isr, record.elr) == ((2,), ())


async def test_an_unclean_election_is_rejected_if_a_replica_leads_or_can_lead_without_loss() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1), OFFLINE)
    assert await elect(registered_partitions, UNCLEAN, ("t", 0), ("t", 1)) == {
        ("t", 0): ElectionNotNeeded.code,
        ("t", 1): ElectionNotNeeded.code,
    }
    assert await registered_partitions.record("t", 1) == OFFLINE


async def test_an_unclean_election_needs_a_live_replica() -> None:
    registered_partitions = RegisteredPartitions(4)
    await registered_partitions.add("t", OFFLINE)
    assert await elect(registered_partitions, UNCLEAN, ("t", 0)) == {("t", 0): EligibleLeadersNotAvailable.code}


async def test_an_unclean_election_is_logged_with_its_principal(caplog: pytest.LogCaptureFixture) -> None:
    registered_partitions = RegisteredPartitions(2)
    await registered_partitions.add("t", OFFLINE)
    await elect(registered_partitions, UNCLEAN, ("t", 0))
    assert "unclean" in caplog.text
    assert "'t'" in caplog.text
    caplog.clear()
    await elect(registered_partitions, PREFERRED, ("t", 0))
    assert not caplog.records


async def test_an_unknown_election_type_is_rejected() -> None:
    registered_partitions = RegisteredPartitions(1)
    assert (await elect_leaders(registered_partitions, ElectLeadersRequest(2, []))).error_code == InvalidRequest.code


async def test_partitions_not_changed_in_time_return_request_timed_out() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    assert await elect(registered_partitions, PREFERRED, ("t", 0), timeout_ms=0) == {("t", 0): RequestTimedOut.code}


async def test_a_protocol_may_start_the_handler_outside_of_a_task() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Any] = loop.create_future()

    def open_door() -> None:
        try:
            started.set_result(start_inline(elect(registered_partitions, PREFERRED, ("t", 0)), loop))
        except RuntimeError as error:
            started.set_exception(error)

    loop.call_soon(open_door)
    assert await (await started) == {("t", 0): OK}


async def test_an_unavailable_registry_gives_a_retriable_error() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    registered_partitions.registry.unavailable = True
    assert await elect(registered_partitions, PREFERRED, ("t", 0)) == {("t", 0): RequestTimedOut.code}


async def test_a_colocated_partition_is_led_by_the_leader_of_its_owner() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(2, 1, first=1))
    await registered_partitions.add(
        "__acks.t", led_partition(2, 1, first=1), owner=registered_partitions.catalogue.topic("t").id
    )
    assert await elect(registered_partitions, PREFERRED, ("__acks.t", 0)) == {("__acks.t", 0): ElectionNotNeeded.code}
    assert codes(await elect_leaders(registered_partitions, ElectLeadersRequest(PREFERRED, None, 1000))) == {
        ("t", 0): OK
    }
