"""Topics with retention.mode=acked: space comes back as messages are settled, on every replica."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.house import House
from tests.unit.broker.queueing import CREATE, DELETE, TOPIC, Member, alter, values_of
from tests.unit.broker.town import Town, in_town

from headrace.model.errors import InvalidConfig
from headrace.storage.log import Log

ACKED = {"retention.mode": "acked", "segment.bytes": "2000"}
COUNT = 100


async def make_queue(house: House, **configs: str) -> None:
    await house.host.start(house.broker.catalogue.create(TOPIC, 1, ACKED | configs), "create")
    assert (await alter(house, CREATE)).error_code == 0
    for number in range(COUNT):
        await produce(house, TOPIC, b"%03d" % number + b"." * 100)


async def work_off(house: House, *but: int) -> None:
    """All but these offsets, whose lease is not settled."""
    member = Member(house)
    while messages := await member.lease():
        await member.ack([one for one in messages if one.offset not in but])


def stored(house: House) -> Log:
    found = house.broker.catalogue.topic(TOPIC).local(0)
    assert found is not None
    return found.log


async def test_disk_use_falls_and_the_one_that_nobody_settled_is_delivered_again(house: House) -> None:
    await make_queue(house)
    before_bytes = stored(house).size_bytes
    await work_off(house, 3)
    await house.pass_time(40)
    assert stored(house).size_bytes < before_bytes / 10
    assert stored(house).start_offset == 3
    await house.pass_time(60)  # its lease is over
    again = await Member(house).lease()
    assert values_of(again) == [b"003" + b"." * 100]
    await Member(house).ack(again)
    await produce(house, TOPIC, b"new")
    await house.pass_time(40)
    assert await read_all(house, TOPIC, offset=stored(house).start_offset) == [b"new"]
    await house.restart()
    assert values_of(await Member(house).lease()) == [b"new"]


async def test_without_a_subscription_everything_stays(house: House) -> None:
    await make_queue(house)
    before_bytes = stored(house).size_bytes
    await work_off(house)
    assert (await alter(house, DELETE)).error_code == 0
    await house.pass_time(40)
    assert (stored(house).start_offset, stored(house).size_bytes) == (0, before_bytes)


async def test_by_default_everything_stays_as_long_as_time_says(house: House) -> None:
    await make_queue(house, **{"retention.mode": "time"})
    before_bytes = stored(house).size_bytes
    await work_off(house)
    await house.pass_time(40)
    assert (stored(house).start_offset, stored(house).size_bytes) == (0, before_bytes)


async def test_a_topic_that_is_compacted_keeps_by_key_and_not_by_acks(house: House) -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.mode"):
        await house.broker.catalogue.create("t", 1, {"retention.mode": "acked", "cleanup.policy": "compact"})


@in_town()
async def test_every_replica_makes_room_and_whoever_leads_next_has_what_is_left(town: Town) -> None:
    await make_queue(town[1])
    before_bytes = stored(town[1]).size_bytes
    leader = await town.until_led(TOPIC)
    await work_off(leader, 7, 60)
    await town.until(lambda: all(stored(house).size_bytes < before_bytes / 5 for house in town.up))
    await town.until(lambda: all(stored(house).start_offset == 7 for house in town.up))
    leader.kill()
    following = await town.until_led(TOPIC)
    await town.until_led(f"__acks.{TOPIC}", following.node_id)
    member = Member(following)
    left = await member.lease(wait_ms=5000)
    assert [one.offset for one in left] == [7, 60]
    await produce(following, TOPIC, b"of the next leader epoch")
    await member.ack([*left, *await member.lease(wait_ms=5000)])
    await town.until(lambda: stored(following).start_offset == COUNT + 1)
    await leader.open()
    await town.until_in_sync(TOPIC)
