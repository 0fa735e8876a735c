"""The door: whom it lets in, whom it lets go, and how it is closed."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.doors.kafka.doorstep import Caller, Doorstep

from headrace.doors.kafka.listener import DoorLimits


async def is_served(doorstep: Doorstep, caller: Caller) -> bool:
    before = len(caller.answers)
    caller.ask("hello")
    await doorstep.until(lambda: caller.closed or len(caller.answers) > before)
    return not caller.closed


async def test_one_host_gets_only_so_many_connections(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(connections_per_host_max=2))
    first, second, third = [await doorstep.call("greedy") for _ in range(3)]
    other = await doorstep.call("modest")
    assert await is_served(doorstep, first)
    assert await is_served(doorstep, second)
    assert not await is_served(doorstep, third)
    assert await is_served(doorstep, other)
    assert (doorstep.door.accepted, doorstep.door.turned_away) == (3, 1)


async def test_all_hosts_together_get_only_so_many_connections(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(connections_max=2))
    callers = [await doorstep.call(f"host-{number}") for number in range(3)]
    assert [await is_served(doorstep, caller) for caller in callers] == [True, True, False]


async def test_a_connection_that_ends_makes_room_for_another(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(connections_max=1, connections_per_host_max=1))
    for _ in range(3):
        caller = await doorstep.call()
        assert await is_served(doorstep, caller)
        caller.close()
        await doorstep.until(lambda: not doorstep.door.connections)
    assert not doorstep.door._per_host


async def test_a_connection_that_is_idle_too_long_is_closed(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(idle_seconds=60))
    idle, busy = await doorstep.call(), await doorstep.call()
    for _ in range(7):
        await doorstep.pass_time(10)
        assert await is_served(doorstep, busy)
    assert idle.closed
    assert not busy.closed


async def test_one_that_waits_for_an_answer_is_not_idle(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(idle_seconds=60, stalled_seconds=5))
    caller = await doorstep.call()
    doorstep.script.close("long poll")
    caller.fetch("long poll")
    await doorstep.pass_time(300)
    assert not caller.closed
    doorstep.script.open("long poll")
    await doorstep.until(lambda: caller.answers)


@pytest.mark.parametrize("beginning", [b"\0", b"\0\0\0", b"\0\0\0\x40", b"\0\0\0\x40\0\x03"])
async def test_one_that_stops_in_the_middle_of_a_frame_is_closed(doorstep: Doorstep, beginning: bytes) -> None:
    await doorstep.open(DoorLimits(stalled_seconds=5))
    caller = await doorstep.call()
    caller.send(beginning)
    await doorstep.pass_time(4)
    assert not caller.closed
    await doorstep.pass_time(4)
    assert caller.closed
    assert doorstep.door.budget.taken == 0


async def test_one_that_sends_a_byte_now_and_then_is_closed_too(doorstep: Doorstep) -> None:
    await doorstep.open(DoorLimits(stalled_seconds=5))
    caller = await doorstep.call()
    caller.send((1_000_000).to_bytes(4, "big"))
    for _ in range(4):
        await doorstep.pass_time(2)
        if not caller.closed:
            caller.send(b"\0")
    assert caller.closed
    assert doorstep.door.budget.taken == 0


async def test_a_flood_of_garbage_is_not_a_flood_of_log_lines(
    doorstep: Doorstep, caplog: pytest.LogCaptureFixture
) -> None:
    await doorstep.open()
    with caplog.at_level(logging.INFO, "headrace.doors"):
        for _ in range(30):
            caller = await doorstep.call()
            caller.send(b"\xff" * 16)
        await doorstep.until(lambda: doorstep.door.refusals == 30)
    assert 1 <= len(caplog.records) <= 10


async def test_nobody_is_let_in_after_stop_listening(doorstep: Doorstep) -> None:
    await doorstep.open()
    inside = await doorstep.call()
    doorstep.door.stop_listening()
    doorstep.door.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await doorstep.call()
    assert await is_served(doorstep, inside)


async def test_draining_lets_requests_in_flight_end_and_sends_their_answers(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller, idle = await doorstep.call(), await doorstep.call()
    doorstep.script.close("in flight")
    caller.ask("in flight", "behind it")
    await doorstep.until(lambda: len(doorstep.script.started) == 2)
    draining = doorstep.host.start(doorstep.door.drain(10), "drain")
    await doorstep.pass_time(2)
    assert not draining.done()
    doorstep.script.open("in flight")
    await draining
    await doorstep.until(lambda: caller.closed and idle.closed)
    assert caller.names() == ["in flight", "behind it"]
    assert not doorstep.door.connections


async def test_draining_also_waits_for_requests_whose_client_is_gone(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    doorstep.script.close("write")
    caller.produce("write")
    await doorstep.until(lambda: doorstep.script.started)
    caller.close()
    await doorstep.until(lambda: not doorstep.door.connections)
    draining = doorstep.host.start(doorstep.door.drain(10), "drain")
    await doorstep.pass_time(1)
    assert not draining.done()
    doorstep.script.open("write")
    await draining
    assert doorstep.script.ended == ["write"]


async def test_draining_does_not_wait_for_ever(doorstep: Doorstep) -> None:
    await doorstep.open()
    caller = await doorstep.call()
    doorstep.script.close("stuck")
    caller.ask("stuck")
    await doorstep.until(lambda: doorstep.script.started)
    began = doorstep.world.loop.time()
    await doorstep.host.start(doorstep.door.drain(10), "drain")
    assert doorstep.world.loop.time() - began == pytest.approx(10, abs=0.1)
    await doorstep.until(lambda: caller.closed)


async def test_draining_an_idle_door_is_over_at_once(doorstep: Doorstep) -> None:
    await doorstep.open()
    async with asyncio.timeout(0.001):
        await doorstep.door.drain(10)
