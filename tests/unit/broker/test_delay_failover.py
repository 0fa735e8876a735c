"""Delayed messages in a cluster of three: whichever broker goes away meanwhile, each comes once, in time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.unit.broker.delayed import DELAYED, TOPIC, companion, delay, message, now_ms, seen, values
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

ways = pytest.mark.parametrize("way", ["hand over", "kill", "cut power"])


async def leave(house: ClusterHouse, way: str) -> None:
    if way == "hand over":
        await house.host.start(house.broker.cluster.hand_over(), "hand over")
        await house.close()
    else:
        house.kill(keep_page_cache=way == "kill")


async def make(town: Town) -> ClusterHouse:
    await town.make_topic(TOPIC, min_insync_replicas="2")
    leader = await town.until_led(TOPIC)
    await companion(leader)
    await town.until_in_sync(TOPIC)
    await town.until_in_sync(DELAYED)
    assert town.leader(DELAYED) is leader
    return leader


async def until_both_led(town: Town) -> ClusterHouse:
    await town.until_led(TOPIC)
    await town.until(lambda: town.record(DELAYED).leader == town.record(TOPIC).leader)
    return await town.until_led(DELAYED, town.record(TOPIC).leader)


@ways
@in_town()
async def test_the_next_leader_releases_what_waits(town: Town, way: str) -> None:
    leader = await make(town)
    sent_ms = now_ms(leader)
    await delay(leader, *[message(leader, b"%d" % n, delay=f"{n}s") for n in range(0, 60, 5)])
    await asyncio.sleep(12)
    await leave(leader, way)

    following = await until_both_led(town)
    await asyncio.sleep(sent_ms / 1000 + 57 - now_ms(following) / 1000)

    assert await values(following) == [b"%d" % n for n in range(0, 60, 5)]
    for one in await seen(following):
        if int(one.value) >= 40:
            assert 0 <= one.timestamp_ms - sent_ms - int(one.value) * 1000 <= 30


@ways
@in_town()
async def test_a_leader_that_goes_in_the_middle_of_releasing_leaves_nothing_behind(town: Town, way: str) -> None:
    leader = await make(town)
    due_ms = now_ms(leader) + 5000
    for first in range(0, 4000, 500):
        batch = [message(leader, b"%d" % n, deliver_at=str(due_ms)) for n in range(first, first + 500)]
        await delay(leader, *batch)
    target = leader.partition(TOPIC)
    while not target.log.end_offset:
        await asyncio.sleep(0.001)
    assert target.log.end_offset < 4000
    await leave(leader, way)

    following = await until_both_led(town)
    await asyncio.sleep(20)

    assert Counter(await values(following)) == Counter(b"%d" % n for n in range(4000))


@in_town()
async def test_the_lead_goes_from_one_to_the_next_while_messages_come_due(town: Town) -> None:
    leader = await make(town)
    await delay(leader, *[message(leader, b"%d" % n, delay=f"{n * 80}ms") for n in range(300)])
    for node_id in (2, 3, 1, 3, 2, 1):
        await asyncio.sleep(3.3)
        await town.move_lead(TOPIC, node_id)  # its companion follows
    following = await until_both_led(town)
    await asyncio.sleep(20)
    assert Counter(await values(following)) == Counter(b"%d" % n for n in range(300))
