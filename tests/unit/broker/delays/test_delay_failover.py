"""In a cluster of three, each delayed message is released once and on time, whichever broker fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.unit.broker.delays.delay_support import DELAYED, TOPIC, colocated_topic, delay, message, now_ms, seen, values
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

each_way_to_leave = pytest.mark.parametrize("way", ["hand over", "kill", "cut power"])


async def leave(simulated_broker: SimulatedClusterBroker, way: str) -> None:
    if way == "hand over":
        await simulated_broker.host.start(simulated_broker.broker.cluster.transfer_leadership(), "hand over")
        await simulated_broker.close()
    else:
        simulated_broker.kill(keep_page_cache=way == "kill")


async def make(simulated_cluster: SimulatedCluster) -> SimulatedClusterBroker:
    await simulated_cluster.create_topic(TOPIC, min_insync_replicas="2")
    leader = await simulated_cluster.wait_for_leader(TOPIC)
    await colocated_topic(leader)
    await simulated_cluster.wait_until_in_sync(TOPIC)
    await simulated_cluster.wait_until_in_sync(DELAYED)
    assert simulated_cluster.leader(DELAYED) is leader
    return leader


async def until_both_led(simulated_cluster: SimulatedCluster) -> SimulatedClusterBroker:
    await simulated_cluster.wait_for_leader(TOPIC)
    await simulated_cluster.wait_until(
        lambda: simulated_cluster.record(DELAYED).leader == simulated_cluster.record(TOPIC).leader
    )
    return await simulated_cluster.wait_for_leader(DELAYED, simulated_cluster.record(TOPIC).leader)


@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_leader_releases_waiting_messages(simulated_cluster: SimulatedCluster, way: str) -> None:
    leader = await make(simulated_cluster)
    sent_ms = now_ms(leader)
    await delay(leader, *[message(leader, b"%d" % n, delay=f"{n}s") for n in range(0, 60, 5)])
    await asyncio.sleep(12)
    await leave(leader, way)

    following = await until_both_led(simulated_cluster)
    await asyncio.sleep(sent_ms / 1000 + 57 - now_ms(following) / 1000)

    assert await values(following) == [b"%d" % n for n in range(0, 60, 5)]
    for one in await seen(following):
        if int(one.value) >= 40:
            assert 0 <= one.timestamp_ms - sent_ms - int(one.value) * 1000 <= 30


@each_way_to_leave
@in_simulated_cluster()
async def test_a_leader_that_leaves_during_a_release_leaves_no_message_behind(
    simulated_cluster: SimulatedCluster, way: str
) -> None:
    leader = await make(simulated_cluster)
    due_ms = now_ms(leader) + 5000
    for first in range(0, 4000, 500):
        batch = [message(leader, b"%d" % n, deliver_at=str(due_ms)) for n in range(first, first + 500)]
        await delay(leader, *batch)
    target = leader.partition(TOPIC)
    while not target.log.end_offset:
        await asyncio.sleep(0.001)
    assert target.log.end_offset < 4000
    await leave(leader, way)

    following = await until_both_led(simulated_cluster)
    await asyncio.sleep(20)

    assert Counter(await values(following)) == Counter(b"%d" % n for n in range(4000))


@in_simulated_cluster()
async def test_messages_are_released_once_across_leadership_changes(simulated_cluster: SimulatedCluster) -> None:
    leader = await make(simulated_cluster)
    await delay(leader, *[message(leader, b"%d" % n, delay=f"{n * 80}ms") for n in range(300)])
    for node_id in (2, 3, 1, 3, 2, 1):
        await asyncio.sleep(3.3)
        await simulated_cluster.move_leadership(TOPIC, node_id)  # its companion follows
    following = await until_both_led(simulated_cluster)
    await asyncio.sleep(20)
    assert Counter(await values(following)) == Counter(b"%d" % n for n in range(300))
