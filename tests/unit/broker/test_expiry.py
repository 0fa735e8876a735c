"""Topics that end by themselves: when nothing is written, and not before."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import produce
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker.expiry import TopicExpiry

LIMIT = "10000"


def is_there(house: House, topic: str = "t") -> bool:
    return house.broker.catalogue.find(topic) is not None


async def test_a_topic_that_nobody_writes_to_is_deleted(house: House) -> None:
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    await house.make_topic("other")
    await house.pass_time(9)
    assert is_there(house)
    await house.pass_time(4)
    assert not is_there(house)
    assert is_there(house, "other")


async def test_every_message_gives_it_more_time(house: House) -> None:
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    for _ in range(5):
        await produce(house, "t", b"a")
        await house.pass_time(8)
    assert is_there(house)
    await house.pass_time(4)
    assert not is_there(house)


async def test_a_restart_gives_it_more_time(house: House) -> None:
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    await house.pass_time(8)
    await house.restart()
    await house.pass_time(8)
    assert is_there(house)
    await house.pass_time(5)
    assert not is_there(house)


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


async def test_a_pause_of_the_process_gives_it_more_time(house: House) -> None:
    """The session may have ended in the pause and another broker may have taken writes; this one cannot know yet."""
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    clock = ManualClock()
    expiry = TopicExpiry(house.broker.catalogue, clock, lambda: True)
    assert list(expiry._idle()) == []
    clock.now += 3600  # SIGSTOP and SIGCONT
    assert list(expiry._idle()) == []
    for _ in range(9):
        clock.now += 1
        assert list(expiry._idle()) == []
    clock.now += 1
    assert [topic.name for topic in expiry._idle()] == ["t"]


async def test_a_topic_of_several_partitions_stays(house: House) -> None:
    await house.make_topic("t", 2, expire_after_idle_ms=LIMIT)
    await house.pass_time(60)
    assert is_there(house)


async def test_who_is_not_sure_to_be_of_the_cluster_deletes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.broker.expiry, "_session_valid", lambda: False)
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    await house.pass_time(60)
    assert is_there(house)


@in_town()
async def test_only_the_leader_deletes_and_all_see_it(town: Town) -> None:
    await town.make_topic("t", expire_after_idle_ms=LIMIT)
    await town.until_in_sync("t")
    await town.until(lambda: not any(is_there(house) for house in town.up))


async def test_a_topic_with_a_dead_letter_topic_does_not_expire_since_that_would_go_with_it(house: House) -> None:
    await house.make_topic("t", expire_after_idle_ms=LIMIT)
    await produce(house, "t", b"a")
    await house.host.start(house.broker.dead_letters.bury("t", 0, 0, "workers", 5, "boom"), "bury")
    await house.pass_time(30)
    assert is_there(house)
