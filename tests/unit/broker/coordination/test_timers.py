"""A timer fires on time, with the callback that was set last."""

from __future__ import annotations

from functools import partial

from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.timers import Timers


async def test_a_timer_fires_at_the_earliest_deadline_with_the_last_callback(
    simulated_broker: SimulatedBroker,
) -> None:
    rung: list[str] = []
    alarms = Timers(lambda: 0)
    alarms.set("g", 2_000, partial(rung.append, "first"))
    alarms.set("g", 1_000, partial(rung.append, "second"))
    alarms.set("g", 9_000, partial(rung.append, "third"))
    await simulated_broker.pass_time(0.9)
    assert rung == []
    await simulated_broker.pass_time(0.2)
    assert rung == ["third"]
    await simulated_broker.pass_time(20)
    assert rung == ["third"]


async def test_a_cancelled_timer_does_not_fire(simulated_broker: SimulatedBroker) -> None:
    rung: list[str] = []
    alarms = Timers(lambda: 0)
    for name in ("a", "b", "c"):
        alarms.set(name, 1_000, partial(rung.append, name))
    alarms.cancel("a")
    alarms.cancel("nobody")
    await simulated_broker.pass_time(2)
    alarms.set("c", 1_000, partial(rung.append, "again"))
    alarms.stop()
    await simulated_broker.pass_time(2)
    assert rung == ["b", "c"]
