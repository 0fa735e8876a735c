"""LeaseOffsets leases exactly the requested messages, as far as they are available."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import WORKERS, SubscriptionMember, configure, subscribe, values_of
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.queues.lease_reader import intersect_ranges
from headrace.broker.queues.subscription_requests import RANGES_MAX
from headrace.machines.queues.subscription_values import Range
from headrace.model.errors import InvalidRecordState, InvalidRequest, UnknownTopicOrPartition
from headrace.wire.messages.queues import (
    LeaseOffsetsRange,
    LeaseOffsetsRequest,
    SettleItem,
    SettlePartition,
    SettleRequest,
    SettleTopic,
)


async def lease(simulated_broker: SimulatedBroker, *wanted: tuple[int, int], **options: Any) -> Any:
    request = LeaseOffsetsRequest(
        subscription=WORKERS,
        member="chooser",
        topic="jobs",
        partition_index=0,
        wanted=[LeaseOffsetsRange(first, last) for first, last in wanted],
    )
    for name, value in options.items():
        setattr(request, name, value)
    return await simulated_broker.send(request, 0)


def offsets(answer: Any) -> list[tuple[int, int, int]]:
    assert answer.error_code == 0, answer
    return [(one.first, one.last, one.attempt) for one in answer.leased]


async def ten_jobs(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", *(b"%d" % number for number in range(10)))


async def test_only_the_requested_offsets_are_leased(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    assert offsets(await lease(simulated_broker, (2, 3), (7, 7))) == [(2, 3, 1), (7, 7, 1)]
    others = await SubscriptionMember(simulated_broker).lease()
    assert values_of(others) == [b"0", b"1", b"4", b"5", b"6", b"8", b"9"]


async def test_settled_and_leased_offsets_are_left_out(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    member = SubscriptionMember(simulated_broker)
    await member.ack(await member.lease(3))
    await member.lease(2)
    assert offsets(await lease(simulated_broker, (0, 6))) == [(5, 6, 1)]
    assert offsets(await lease(simulated_broker, (0, 6))) == []


async def test_offsets_beyond_the_end_are_left_out(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    assert offsets(await lease(simulated_broker, (8, 20), (30, 40))) == [(8, 9, 1)]


async def test_a_lease_by_offset_is_settled_like_any_other(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    response = await lease(simulated_broker, (4, 5))
    items = [SettleItem(first=4, last=5, attempt=1), SettleItem(first=6, last=6)]
    partition = SettlePartition(partition_index=0, lease_epoch=response.lease_epoch, items=items)
    request = SettleRequest(subscription=WORKERS, member="chooser", topics=[SettleTopic("jobs", [partition])])
    settled = (await simulated_broker.send(request, 0)).topics[0].partitions[0]
    assert [(one.index, one.error_code) for one in settled.refused] == [(1, InvalidRecordState.code)]
    assert offsets(await lease(simulated_broker, (0, 9))) == [(0, 3, 1), (6, 9, 1)]


async def test_a_lease_by_offset_expires_and_counts_as_a_delivery(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    response = await lease(simulated_broker, (4, 4), lease_ms=5000)
    assert 0 <= response.leased_until_ms - simulated_broker.host.clock.now_ms() <= 5000
    await simulated_broker.pass_time(6)
    assert offsets(await lease(simulated_broker, (4, 4))) == [(4, 4, 2)]


@pytest.mark.parametrize("wanted", [(), ((3, 2),), ((-1, 2),), ((5, 6), (6, 7)), ((5, 6), (1, 2))])
async def test_ranges_that_do_not_ascend_are_rejected(
    simulated_broker: SimulatedBroker, wanted: tuple[tuple[int, int], ...]
) -> None:
    await ten_jobs(simulated_broker)
    assert (await lease(simulated_broker, *wanted)).error_code == InvalidRequest.code


async def test_invalid_limits_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    assert (
        await lease(simulated_broker, *((at, at) for at in range(RANGES_MAX + 1)))
    ).error_code == InvalidRequest.code
    assert (await lease(simulated_broker, (0, 1), lease_ms=1)).error_code == InvalidRequest.code
    assert (await lease(simulated_broker, (0, 1), member="")).error_code == InvalidRequest.code


async def test_a_subscription_with_a_filter_cannot_be_leased_by_offset(simulated_broker: SimulatedBroker) -> None:
    await ten_jobs(simulated_broker)
    await configure(simulated_broker, headrace_filter="key = 'a'")
    response = await lease(simulated_broker, (0, 1))
    assert response.error_code == InvalidRequest.code
    assert "selects messages by their contents" in response.error_message


async def test_an_unknown_topic_is_rejected(simulated_broker: SimulatedBroker) -> None:
    assert (await lease(simulated_broker, (0, 1))).error_code == UnknownTopicOrPartition.code


def test_intersect_ranges_returns_the_common_offsets() -> None:
    free = [Range(0, 3), Range(6, 9), Range(12, 12)]
    assert intersect_ranges(free, [(2, 7), (8, 8), (12, 20)]) == [Range(2, 3), Range(6, 7), Range(8, 8), Range(12, 12)]
    assert intersect_ranges(free, [(4, 5), (10, 11)]) == []
    assert intersect_ranges([], [(0, 9)]) == []
