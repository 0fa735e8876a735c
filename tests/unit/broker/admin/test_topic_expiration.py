"""Topics with an expiration are deleted after that time without writes, and not before."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.admin.topic_expiration import TopicExpiration

LIMIT = "10000"


def is_there(simulated_broker: SimulatedBroker, topic: str = "t") -> bool:
    return simulated_broker.broker.catalogue.find(topic) is not None


async def test_a_topic_without_writes_is_deleted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    await simulated_broker.create_topic("other")
    await simulated_broker.pass_time(9)
    assert is_there(simulated_broker)
    await simulated_broker.pass_time(4)
    assert not is_there(simulated_broker)
    assert is_there(simulated_broker, "other")


async def test_every_message_restarts_the_expiration(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    for _ in range(5):
        await produce(simulated_broker, "t", b"a")
        await simulated_broker.pass_time(8)
    assert is_there(simulated_broker)
    await simulated_broker.pass_time(4)
    assert not is_there(simulated_broker)


async def test_a_restart_restarts_the_expiration(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    await simulated_broker.pass_time(8)
    await simulated_broker.restart()
    await simulated_broker.pass_time(8)
    assert is_there(simulated_broker)
    await simulated_broker.pass_time(5)
    assert not is_there(simulated_broker)


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


async def test_a_pause_of_the_process_restarts_the_expiration(simulated_broker: SimulatedBroker) -> None:
    """The session may have ended in the pause and another broker may have taken writes; this one cannot know yet."""
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    clock = ManualClock()
    topic_expiration = TopicExpiration(simulated_broker.broker.catalogue, clock, lambda: True)
    assert list(topic_expiration._idle()) == []
    clock.now += 3600  # SIGSTOP and SIGCONT
    assert list(topic_expiration._idle()) == []
    for _ in range(9):
        clock.now += 1
        assert list(topic_expiration._idle()) == []
    clock.now += 1
    assert [topic.name for topic in topic_expiration._idle()] == ["t"]


async def test_a_topic_of_several_partitions_does_not_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2, expire_after_idle_ms=LIMIT)
    await simulated_broker.pass_time(60)
    assert is_there(simulated_broker)


async def test_a_broker_without_a_valid_session_deletes_nothing(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_broker.broker.topic_expiration, "_session_valid", lambda: False)
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    await simulated_broker.pass_time(60)
    assert is_there(simulated_broker)


@in_simulated_cluster()
async def test_only_the_leader_deletes_and_all_brokers_see_it(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", expire_after_idle_ms=LIMIT)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until(
        lambda: not any(is_there(simulated_broker) for simulated_broker in simulated_cluster.up)
    )


async def test_a_topic_with_a_dead_letter_topic_does_not_expire(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", expire_after_idle_ms=LIMIT)
    await produce(simulated_broker, "t", b"a")
    await simulated_broker.host.start(
        simulated_broker.broker.dead_letters.dead_letter("t", 0, 0, "workers", 5, "boom"), "bury"
    )
    await simulated_broker.pass_time(30)
    assert is_there(simulated_broker)
