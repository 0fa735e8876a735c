"""Topics with retention.mode=acked: settled messages are deleted on every replica."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.queues.queue_support import CREATE, DELETE, TOPIC, SubscriptionMember, alter, values_of
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import InvalidConfig
from headrace.storage.log.log import Log

ACKED = {"retention.mode": "acked", "segment.bytes": "2000"}
COUNT = 100


async def make_queue(simulated_broker: SimulatedBroker, **configs: str) -> None:
    await simulated_broker.host.start(simulated_broker.broker.catalogue.create(TOPIC, 1, ACKED | configs), "create")
    assert (await alter(simulated_broker, CREATE)).error_code == 0
    for number in range(COUNT):
        await produce(simulated_broker, TOPIC, b"%03d" % number + b"." * 100)


async def work_off(simulated_broker: SimulatedBroker, *but: int) -> None:
    """Ack all messages but these offsets, whose leases stay."""
    member = SubscriptionMember(simulated_broker)
    while messages := await member.lease():
        await member.ack([one for one in messages if one.offset not in but])


def stored(simulated_broker: SimulatedBroker) -> Log:
    found = simulated_broker.broker.catalogue.topic(TOPIC).replicas.get(0)
    assert found is not None
    return found.log


async def test_disk_use_falls_and_an_unsettled_message_is_delivered_again(
    simulated_broker: SimulatedBroker,
) -> None:
    await make_queue(simulated_broker)
    before_bytes = stored(simulated_broker).size_bytes
    await work_off(simulated_broker, 3)
    await simulated_broker.pass_time(40)
    assert stored(simulated_broker).size_bytes < before_bytes / 10
    assert stored(simulated_broker).start_offset == 3
    await simulated_broker.pass_time(60)  # its lease expires
    again = await SubscriptionMember(simulated_broker).lease()
    assert values_of(again) == [b"003" + b"." * 100]
    await SubscriptionMember(simulated_broker).ack(again)
    await produce(simulated_broker, TOPIC, b"new")
    await simulated_broker.pass_time(40)
    assert await read_all(simulated_broker, TOPIC, offset=stored(simulated_broker).start_offset) == [b"new"]
    await simulated_broker.restart()
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [b"new"]


async def test_without_a_subscription_all_messages_are_kept(simulated_broker: SimulatedBroker) -> None:
    await make_queue(simulated_broker)
    before_bytes = stored(simulated_broker).size_bytes
    await work_off(simulated_broker)
    assert (await alter(simulated_broker, DELETE)).error_code == 0
    await simulated_broker.pass_time(40)
    assert (stored(simulated_broker).start_offset, stored(simulated_broker).size_bytes) == (0, before_bytes)


async def test_by_default_retention_is_by_time(simulated_broker: SimulatedBroker) -> None:
    await make_queue(simulated_broker, **{"retention.mode": "time"})
    before_bytes = stored(simulated_broker).size_bytes
    await work_off(simulated_broker)
    await simulated_broker.pass_time(40)
    assert (stored(simulated_broker).start_offset, stored(simulated_broker).size_bytes) == (0, before_bytes)


async def test_a_compacted_topic_ignores_acked_retention(simulated_broker: SimulatedBroker) -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.mode"):
        await simulated_broker.broker.catalogue.create("t", 1, {"retention.mode": "acked", "cleanup.policy": "compact"})


@in_simulated_cluster()
async def test_every_replica_frees_space_and_the_next_leader_has_the_unsettled_messages(
    simulated_cluster: SimulatedCluster,
) -> None:
    await make_queue(simulated_cluster[1])
    before_bytes = stored(simulated_cluster[1]).size_bytes
    leader = await simulated_cluster.wait_for_leader(TOPIC)
    await work_off(leader, 7, 60)
    await simulated_cluster.wait_until(
        lambda: all(stored(simulated_broker).size_bytes < before_bytes / 5 for simulated_broker in simulated_cluster.up)
    )
    await simulated_cluster.wait_until(
        lambda: all(stored(simulated_broker).start_offset == 7 for simulated_broker in simulated_cluster.up)
    )
    leader.kill()
    following = await simulated_cluster.wait_for_leader(TOPIC)
    await simulated_cluster.wait_for_leader(f"__acks.{TOPIC}", following.node_id)
    member = SubscriptionMember(following)
    left = await member.lease(wait_ms=5000)
    assert [one.offset for one in left] == [7, 60]
    await produce(following, TOPIC, b"of the next leader epoch")
    await member.ack([*left, *await member.lease(wait_ms=5000)])
    await simulated_cluster.wait_until(lambda: stored(following).start_offset == COUNT + 1)
    await leader.open()
    await simulated_cluster.wait_until_in_sync(TOPIC)
