"""What a leader lets others copy: those who catch up no faster than it is told, those in sync as they like."""

from __future__ import annotations

import asyncio

from tests.unit.broker.asking import produce
from tests.unit.broker.test_config_admin import BROKER, DELETE, SET, change
from tests.unit.broker.town import Town, in_town

RATE = "leader.replication.throttled.rate"
VALUE = b"x" * 100_000


async def leave_behind(town: Town, rate: str, *values: bytes) -> None:
    """Broker 2 lacks these, by default two large ones: the second has to wait until the first is paid for."""
    await town.make_topic("t", (1, 2))
    await town.until_in_sync("t")
    assert await change(town[1], BROKER, "1", (RATE, SET, rate)) == 0
    town[2].kill()
    await town.until_in_sync("t", 1)
    for value in values or (VALUE, VALUE):
        await produce(town[1], "t", value)


@in_town(replica_fetch_max_bytes="1000")
async def test_a_leader_is_copied_from_no_faster_than_it_is_told_by_those_who_catch_up(town: Town) -> None:
    await leave_behind(town, "10000")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await town.open(2)
    await town.until_in_sync("t")
    assert 10 <= loop.time() - began < 15


@in_town(replica_fetch_max_bytes="1000")
async def test_a_follower_that_waits_for_little_does_not_wait_for_long(town: Town) -> None:
    await leave_behind(town, "10000", *[b"x" * 1000] * 20)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await town.open(2)
    await town.until_in_sync("t")
    assert 2 <= loop.time() - began < 4


@in_town(replica_fetch_max_bytes="1000")
async def test_a_rate_that_is_taken_back_holds_nobody_up(town: Town) -> None:
    await leave_behind(town, "1")
    await town.open(2)
    await town.until(lambda: town.replica(2, "t").log.end_offset == 1)
    assert await change(town[1], BROKER, "1", (RATE, DELETE, None)) == 0
    await town.until_in_sync("t")


@in_town(replica_fetch_max_bytes="1000")
async def test_a_replica_in_sync_is_not_held_up(town: Town) -> None:
    await town.make_topic("other", (1, 2))
    await leave_behind(town, "1")
    await town.open(2)
    await town.until(lambda: town.replica(2, "t").log.end_offset == 1)
    await town.until_in_sync("other")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(2):
        await produce(town[1], "other", VALUE)
    assert loop.time() - began < 1
    assert town.replica(2, "t").log.end_offset == 1


@in_town()
async def test_what_goes_to_replicas_in_sync_is_not_counted(town: Town) -> None:
    await town.make_topic("other", (1, 3))
    await town.until_in_sync("other", 1, 3)
    await leave_behind(town, "10000", b"a", b"b")
    for _ in range(5):
        await produce(town[1], "other", VALUE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await town.open(2)
    await town.until_in_sync("t")
    assert loop.time() - began < 5
