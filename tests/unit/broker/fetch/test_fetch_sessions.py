"""Fetch sessions: only changes are returned, and topics may be created and deleted within a session."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import batch, fetch_request, fetched_partitions, produce, values
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMismatch,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.fetch import FetchRequest

Positions = dict[tuple[str | UUID, int], int]


class Session:
    """A client that keeps its session's id and epoch."""

    def __init__(self, simulated_broker: SimulatedBroker, version: int = 11) -> None:
        self.simulated_broker = simulated_broker
        self.version = version
        self.id = 0
        self.epoch = 0

    def request(self, positions: Positions | None = None, **options: Any) -> FetchRequest:
        return fetch_request(positions or {}, session_id=self.id, session_epoch=self.epoch, **options)

    async def fetch(self, positions: Positions | None = None, **options: Any) -> dict[tuple[str | UUID, int], Any]:
        response = await self.simulated_broker.send(self.request(positions, **options), self.version)
        return self.apply_response(response)

    def apply_response(self, response: Any) -> dict[tuple[str | UUID, int], Any]:
        assert response.error_code == 0, response
        self.id = response.session_id
        self.epoch += 1
        return fetched_partitions(response)


async def test_the_first_response_has_all_partitions_and_the_next_only_changes(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 3)
    session = Session(simulated_broker)
    found = await session.fetch({("t", index): 0 for index in range(3)})
    assert session.id != 0
    assert list(found) == [("t", 0), ("t", 1), ("t", 2)]
    assert await session.fetch() == {}
    await produce(simulated_broker, "t", b"a", partition=1)
    found = await session.fetch()
    assert {key: values(data.records) for key, data in found.items()} == {("t", 1): [b"a"]}


async def test_records_that_were_not_fetched_yet_are_returned_again(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    found = await session.fetch()
    assert values(found["t", 0].records) == [b"a"], "the client did not move its position"
    assert await session.fetch({("t", 0): 1}) == {}


async def test_the_first_response_has_all_partitions_even_after_a_wait(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    session = Session(simulated_broker)
    found = await session.fetch({("t", 0): 0, ("t", 1): 0}, max_wait_ms=300)
    assert list(found) == [("t", 0), ("t", 1)]


async def test_an_added_partition_is_returned_even_without_records(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 2)
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    found = await session.fetch({("t", 1): 0}, max_wait_ms=300)
    assert list(found) == [("t", 1)]
    assert found["t", 1].high_watermark == 0


async def test_a_new_high_watermark_is_returned_after_the_wait(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    await produce(simulated_broker, "t", b"a")
    found = await session.fetch({("t", 0): 1}, max_wait_ms=300)
    assert found["t", 0].high_watermark == 1


async def test_a_fetch_of_a_session_waits_and_is_woken(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 50)
    session = Session(simulated_broker)
    await session.fetch({("t", index): 0 for index in range(50)})
    pending = simulated_broker.begin_send(session.request(max_wait_ms=60_000), 11)
    await simulated_broker.pass_time(10)
    assert not pending.done()
    await produce(simulated_broker, "t", b"a", partition=33)
    async with asyncio.timeout(0.1):
        assert list(session.apply_response(await pending)) == [("t", 33)]


async def test_a_change_between_two_fetches_is_returned(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    for number in range(5):
        await produce(simulated_broker, "t", b"%d" % number)
        found = await session.fetch({("t", 0): number})
        assert values(found["t", 0].records) == [b"%d" % number]


async def test_partitions_rotate_when_the_response_is_limited(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 3)
    for index in range(3):
        for _ in range(3):
            await produce(simulated_broker, "t", b"x" * 1000, partition=index)
    size = len(batch(b"x" * 1000))
    session = Session(simulated_broker)
    positions: Positions = {("t", index): 0 for index in range(3)}
    seen = []
    found = await session.fetch(positions, max_bytes=size)
    for _ in range(6):
        ((key, data),) = [(key, data) for key, data in found.items() if data.records]
        seen.append(key[1])
        positions[key] += len(values(data.records))
        found = await session.fetch({key: positions[key]}, max_bytes=size)
    assert seen == [0, 1, 2, 0, 1, 2]


async def test_a_forgotten_partition_is_not_returned(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0, ("t", 1): 0})
    await session.fetch(forgotten={"t": [1]})
    await produce(simulated_broker, "t", b"a", partition=1)
    assert await session.fetch() == {}
    assert not simulated_broker.partition("t", 1)._watchers
    assert simulated_broker.partition("t", 0)._watchers


async def test_a_session_without_partitions_is_closed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    assert await session.fetch(forgotten={"t": [0]}) == {}
    assert session.id == 0
    assert not simulated_broker.partition("t")._watchers


async def test_unknown_ids_and_wrong_epochs_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    for session_id, epoch, code in (
        (12345, 1, FetchSessionIdNotFound.code),
        (session.id, 5, InvalidFetchSessionEpoch.code),
        (session.id, 2, InvalidFetchSessionEpoch.code),
    ):
        request = fetch_request({}, session_id=session_id, session_epoch=epoch)
        response = await simulated_broker.send(request, 11)
        assert (response.error_code, response.session_id, list(response.responses)) == (code, 0, [])
    assert await session.fetch() == {}


async def test_names_and_ids_do_not_mix_in_a_session(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    request = fetch_request({}, session_id=session.id, session_epoch=session.epoch)
    assert (await simulated_broker.send(request, 13)).error_code == FetchSessionTopicIdMismatch.code


async def test_the_final_epoch_closes_the_session(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    response = await simulated_broker.send(fetch_request({("t", 0): 0}, session_id=session.id, session_epoch=-1), 11)
    assert (response.session_id, list(fetched_partitions(response))) == (0, [("t", 0)])
    assert (await simulated_broker.send(session.request(), 11)).error_code == FetchSessionIdNotFound.code
    simulated_broker.broker.fetch.sweep()
    assert not simulated_broker.partition("t")._watchers
    assert not simulated_broker.broker.fetch._delayed_fetches


async def test_a_session_that_is_evicted_is_swept(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(max_incremental_fetch_session_cache_slots="1")
    await simulated_broker.create_topic("t")
    first, second = Session(simulated_broker), Session(simulated_broker)
    await first.fetch({("t", 0): 0})
    await second.fetch({("t", 0): 0})
    assert second.id == 0, "no slot for it"
    await simulated_broker.pass_time(130)
    second.epoch = 0
    await second.fetch({("t", 0): 0})
    assert second.id != 0
    await simulated_broker.pass_time(2)
    assert len(simulated_broker.partition("t")._watchers) == len(simulated_broker.broker.fetch._delayed_fetches) == 1


async def test_a_topic_deleted_and_recreated_within_a_session_is_the_new_one(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"old", b"old")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    await session.fetch({("t", 0): 2})
    await simulated_broker.delete_topic("t")
    found = await session.fetch()
    assert found["t", 0].error_code == UnknownTopicOrPartition.code
    await simulated_broker.create_topic("t")
    found = await session.fetch()
    assert found["t", 0].error_code == OffsetOutOfRange.code, "the new one is shorter"
    await produce(simulated_broker, "t", b"new")
    found = await session.fetch({("t", 0): 0})
    assert values(found["t", 0].records) == [b"new"]


async def test_a_topic_named_by_id_does_not_become_its_successor(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    session = Session(simulated_broker, version=13)
    await session.fetch({(topic_id, 0): 0})
    await simulated_broker.delete_topic("t")
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"new")
    found = await session.fetch()
    assert found[topic_id, 0].error_code == UnknownTopicId.code


async def test_a_topic_that_does_not_exist_yet_is_found_when_it_does(simulated_broker: SimulatedBroker) -> None:
    session = Session(simulated_broker)
    found = await session.fetch({("t", 0): 0})
    assert found["t", 0].error_code == UnknownTopicOrPartition.code
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    found = await session.fetch()
    assert values(found["t", 0].records) == [b"a"]


async def test_a_later_fetch_of_the_session_ends_the_wait_of_an_earlier_one(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    earlier = simulated_broker.begin_send(session.request(max_wait_ms=60_000), 11)
    await simulated_broker.pass_time(1)
    session.epoch += 1
    later = simulated_broker.begin_send(session.request(max_wait_ms=60_000), 11)
    async with asyncio.timeout(0.1):
        assert (await earlier).error_code == InvalidFetchSessionEpoch.code
    await simulated_broker.pass_time(1)
    await produce(simulated_broker, "t", b"a")
    async with asyncio.timeout(0.1):
        assert values(session.apply_response(await later)["t", 0].records) == [b"a"]


async def test_a_fetch_that_was_overtaken_while_it_read_from_the_disk_leaves_nothing_pinned(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 2)
    await produce(simulated_broker, "t", b"old", partition=1)
    await simulated_broker.restart()
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0, ("t", 1): 1})
    await produce(simulated_broker, "t", b"new", partition=0)
    earlier = simulated_broker.begin_send(session.request({("t", 1): 0}), 11)
    await simulated_broker.run_ready_tasks(1)
    session.epoch += 1
    later = simulated_broker.begin_send(session.request(), 11)
    assert (await earlier).error_code == InvalidFetchSessionEpoch.code
    assert values(session.apply_response(await later)["t", 0].records) == [b"new"]


async def test_a_cancelled_fetch_does_not_harm_the_next_one_of_its_session(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    gone = simulated_broker.begin_send(session.request(max_wait_ms=60_000), 11)
    await simulated_broker.pass_time(1)
    session.epoch += 1
    pending = simulated_broker.begin_send(session.request(max_wait_ms=60_000), 11)
    gone.cancel()
    await simulated_broker.pass_time(1)
    await produce(simulated_broker, "t", b"a")
    async with asyncio.timeout(0.1):
        assert values(session.apply_response(await pending)["t", 0].records) == [b"a"]


@pytest.mark.parametrize("wait_ms", [0, 200])
async def test_waiting_fetches_of_sessions_end_when_the_broker_stops(
    simulated_broker: SimulatedBroker, wait_ms: int
) -> None:
    await simulated_broker.create_topic("t")
    session = Session(simulated_broker)
    await session.fetch({("t", 0): 0})
    pending = simulated_broker.begin_send(session.request(max_wait_ms=60_000 + wait_ms), 11)
    await simulated_broker.pass_time(1)
    simulated_broker.broker.complete_waiting_requests()
    async with asyncio.timeout(0.1):
        assert session.apply_response(await pending) == {}
