"""Connections: requests start and are answered in their order, and nothing that one client does harms another."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest
from tests.unit.doors.kafka.doorstep import Caller, Doorstep

from headrace.doors.kafka import connection as connection_module
from headrace.doors.kafka.listener import DoorLimits
from headrace.wire.codec import decode
from headrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.messages.fetch import FetchResponse
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

OWED_MAX = connection_module._ANSWERS_OWED_MAX
LARGE_BYTES = 250_000


async def test_answers_leave_in_the_order_of_their_requests_though_handlers_finish_in_any(doorstep: Doorstep) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("a", "b", "c")
    caller.ask("a", "b", "c", "d")
    await doorstep.until(lambda: script.started == ["a", "b", "c", "d"])
    script.open("c")
    script.open("b")
    await doorstep.pass_time()
    assert script.ended == ["d", "c", "b"]
    assert caller.answers == []
    script.open("a")
    await doorstep.until(lambda: len(caller.answers) == 4)
    assert caller.heard == [0, 1, 2, 3]
    assert caller.names() == ["a", "b", "c", "d"]


async def test_requests_start_in_their_order_however_the_bytes_are_cut(doorstep: Doorstep) -> None:
    await doorstep.open()
    doorstep.world.network.fabric.whole_chance = 0.0
    caller = await doorstep.call()
    names = [str(number) for number in range(40)]
    caller.ask(*names)
    await doorstep.until(lambda: len(caller.answers) == 40)
    assert doorstep.script.started == caller.names() == names


async def test_whoever_wants_to_know_is_told_once_that_the_connection_is_gone(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller, other = await doorstep.call(), await doorstep.call()
    told: list[str] = []
    caller.ask("a")
    other.ask("b")
    await doorstep.until(lambda: caller.answers and other.answers)
    for context in doorstep.script.contexts:
        context.when_closed("former", lambda: told.append("former"))
        context.when_closed("former", lambda: told.append("latter"))
    caller.close()
    await doorstep.until(lambda: told)
    assert told == ["latter"]


async def test_the_handler_knows_who_asks_and_through_which_door(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    caller.ask("a")
    await doorstep.until(lambda: caller.answers)
    (context,) = doorstep.script.contexts
    assert (context.version, context.client_id, context.client_host, context.listener) == (
        1,
        "caller",
        "client",
        "PLAINTEXT",
    )


async def test_requests_of_one_connection_may_differ_in_who_asks_and_in_which_version(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    asked = [("one", 1), ("one", 1), ("another", 1), ("another", 3), (None, 3)]
    for client_id, version in asked:
        caller.send(caller.frame(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), version, client_id))
    await doorstep.until(lambda: len(caller.answers) == len(asked))
    assert [(context.client_id, context.version) for context in doorstep.script.contexts] == asked


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x08" + bytes(8),  # ends inside the header
        b"\0\0\0\x0a" + b"\x03\xe7\0\0" + bytes(6),  # api key 999
        b"\0\0\0\x0a" + b"\0\x03\0\x63" + bytes(6),  # Metadata version 99
        b"\0\0\0\x0e" + b"\0\x03\0\x01" + bytes(4) + b"\xff\xff" + b"\x7f\xff\xff\xff",  # 2^31-1 topics
    ],
)
async def test_bytes_that_are_no_request_end_their_connection_and_nothing_else(
    doorstep: Doorstep, garbage: bytes
) -> None:
    await doorstep.open()
    bad, good = await doorstep.call(), await doorstep.call()
    bad.send(garbage)
    await doorstep.until(lambda: bad.closed)
    good.ask("a")
    await doorstep.until(lambda: good.answers)
    assert doorstep.door.refusals == 1
    assert doorstep.door.failures == 0
    assert len(doorstep.door.connections) == 1


@pytest.mark.parametrize("name", ["bug", "late bug", "waits, then late bug", "unencodable", "unencodable, later"])
async def test_a_handler_that_fails_ends_its_connection_and_is_logged(
    doorstep: Doorstep, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await doorstep.open()
    bad, good = await doorstep.call(), await doorstep.call()
    if "," in name:
        doorstep.script.close(name)
    with caplog.at_level(logging.ERROR):
        bad.ask("fine", name, "never answered")
        if "," in name:
            await doorstep.until(lambda: name in doorstep.script.started)
            doorstep.script.open(name)
        await doorstep.until(lambda: bad.closed)
    assert "request failed api=Metadata peer=client" in caplog.text
    assert doorstep.door.failures == 1
    good.ask("a")
    await doorstep.until(lambda: good.answers)
    assert doorstep.door.connections


async def test_acks_0_has_no_answer_and_the_next_one_follows(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    caller.produce("silent", acks=0)
    caller.ask("a")
    await doorstep.until(lambda: caller.answers)
    await doorstep.pass_time()
    assert caller.heard == [1]


async def test_a_refused_produce_without_answer_closes_the_connection(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    caller.produce("close", acks=0)
    caller.ask("behind it")
    await doorstep.until(lambda: caller.closed)
    assert doorstep.script.started == ["close"]
    assert doorstep.door.failures == 0


async def test_a_handler_that_holds_the_connection_keeps_the_next_request_waiting(doorstep: Doorstep) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("hold 1", "hold 2")
    caller.ask("before", "hold 1", "between", "hold 2", "after")
    await doorstep.until(lambda: "hold 1" in script.started)
    caller.ask("last")
    await doorstep.pass_time()
    assert script.started == ["before", "hold 1"]
    script.open("hold 1")
    await doorstep.until(lambda: "hold 2" in script.started)
    await doorstep.pass_time()
    assert script.started == ["before", "hold 1", "between", "hold 2"]
    script.open("hold 2")
    await doorstep.until(lambda: len(caller.answers) == 6)
    assert script.started == caller.names()


async def test_reading_stops_while_too_many_answers_are_owed_and_then_goes_on(doorstep: Doorstep) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("first")
    caller.ask("first", *map(str, range(2 * OWED_MAX)))
    await doorstep.until(lambda: len(script.started) == OWED_MAX)
    await doorstep.pass_time()
    assert len(script.started) == OWED_MAX
    script.open("first")
    await doorstep.until(lambda: len(caller.answers) == 2 * OWED_MAX + 1)
    assert caller.heard == list(range(2 * OWED_MAX + 1))


async def test_reading_stops_while_the_client_does_not_take_its_answers_and_then_goes_on(doorstep: Doorstep) -> None:
    await doorstep.open()
    doorstep.world.network.fabric.whole_chance = 1.0
    script, caller = doorstep.script, await doorstep.call()
    caller.read(False)
    for number in range(100):
        caller.ask(f"large {number}")
        await doorstep.pass_time(0.01)
    assert len(script.started) < 60, "100 answers of 30 kB each"
    caller.read(True)
    await doorstep.until(lambda: len(caller.answers) == 100)
    assert caller.heard == list(range(100))


async def test_a_peer_that_never_reads_is_let_go(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(stalled_seconds=5))
    caller = await doorstep.call()
    caller.read(False)
    for number in range(100):
        caller.ask(f"large {number}")
    await doorstep.until(lambda: not doorstep.door.connections)
    assert doorstep.door.budget.taken == 0


async def test_large_requests_wait_while_the_budget_is_spent_and_then_go_on(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(budget_bytes=400_000))
    doorstep.world.network.fabric.window_bytes = 32_768  # a single read brings no more
    callers = [await doorstep.call() for _ in range(4)]
    for caller in callers:
        caller.send(large_produce(caller)[:-1])
    await doorstep.pass_time(1)
    budget = doorstep.door.budget
    assert budget.taken < 400_000 + LARGE_BYTES
    assert [connection._waits_for_budget for connection in doorstep.door.connections].count(True) == 3
    for caller in callers:
        caller.send(b"!")
    await doorstep.until(lambda: all(caller.answers for caller in callers))
    assert budget.taken == 0


async def test_one_that_stalls_with_the_budget_in_its_hands_is_let_go(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(budget_bytes=400_000, stalled_seconds=5))
    stalled, patient = await doorstep.call(), await doorstep.call()
    stalled.send(large_produce(stalled, size_bytes=390_000)[:-1])
    await doorstep.pass_time(1)
    patient.send(large_produce(patient))
    await doorstep.until(lambda: patient.answers)
    assert stalled.closed or doorstep.door.budget.taken
    await doorstep.until(lambda: stalled.closed)
    assert doorstep.door.budget.taken == 0


def large_produce(caller: Caller, size_bytes: int = LARGE_BYTES) -> bytes:
    data = PartitionProduceData(records=memoryview(bytes(size_bytes)))
    return caller.frame(ProduceRequest(acks=1, topic_data=[TopicProduceData(partition_data=[data])]), 3)


async def test_closing_cancels_only_what_reads(doorstep: Doorstep) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("read", "write")
    caller.fetch("read")
    caller.produce("write")
    await doorstep.until(lambda: script.started == ["read", "write"])
    caller.close()
    await doorstep.until(lambda: script.cancelled == ["read"])
    assert not doorstep.door.connections
    script.open("write")
    await doorstep.until(lambda: script.ended == ["write"])
    assert doorstep.door.failures == 0


async def test_slices_that_were_never_sent_are_released_when_the_connection_ends(doorstep: Doorstep) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("slow")
    caller.ask("slow")
    caller.fetch("done, but behind it")
    await doorstep.until(lambda: script.ended)
    await doorstep.pass_time()
    assert script.file._pins == 1
    caller.close()
    await doorstep.until(lambda: not doorstep.door.connections)
    assert script.file._pins == 0


async def test_a_fetch_that_ends_in_the_turn_in_which_its_connection_does_releases_its_slices(
    doorstep: Doorstep,
) -> None:
    await doorstep.open()
    script, caller = doorstep.script, await doorstep.call()
    script.close("read")
    caller.fetch("read")
    await doorstep.until(lambda: script.started)
    (connection,) = doorstep.door.connections
    script.open("read")
    doorstep.world.loop.call_soon(connection.close)  # behind the handler's last step, before its answer is taken
    await doorstep.pass_time()
    assert script.ended == ["read"]
    assert script.file._pins == 0


async def test_a_slice_of_the_log_arrives_between_the_bytes_of_its_answer(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    caller.fetch("t")
    await doorstep.until(lambda: caller.answers)
    response = decode(FetchResponse, 4, memoryview(caller.answers[0][1]))
    assert bytes(response.responses[0].partitions[0].records) == bytes(range(256)) * 16  # type: ignore[call-overload]


async def test_a_log_file_that_cannot_be_read_ends_the_connection(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    doorstep.host.disk.fail_next("pread", "/data/log")
    caller.fetch("t")
    await doorstep.until(lambda: caller.closed)
    assert not doorstep.door.connections


async def test_api_versions_in_an_unknown_version_is_answered_in_version_0(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    known = caller.frame(ApiVersionsRequest(), 0)
    caller.send(known[:6] + b"\0\x63" + known[8:])
    caller.ask("still here")
    await doorstep.until(lambda: len(caller.answers) == 2)
    response = decode(ApiVersionsResponse, 0, memoryview(caller.answers[0][1]))
    assert response.error_code == 35
    assert [key.api_key for key in response.api_keys] == [18]


async def test_thousands_of_requests_in_one_go_are_answered_while_others_get_their_turn(doorstep: Doorstep) -> None:
    await doorstep.open()
    fabric = doorstep.world.network.fabric
    fabric.whole_chance, fabric.window_bytes = 1.0, 1 << 20
    busy = await doorstep.call()
    busy.send(b"".join(busy.frame(ApiVersionsRequest(), 0) for _ in range(10_000)))
    started = [0]
    while started[-1] < 10_000:
        await asyncio.sleep(0)
        started.append(len(doorstep.script.started))
    assert max(after - before for before, after in pairwise(started)) <= 2 * OWED_MAX
    await doorstep.until(lambda: len(busy.answers) == 10_000)
    assert busy.heard == list(range(10_000))


async def test_a_client_that_breaks_off_is_forgotten(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    caller.ask("a")
    await doorstep.until(lambda: caller.answers)
    doorstep.world.network.reset("client", "broker")
    await doorstep.until(lambda: not doorstep.door.connections)
