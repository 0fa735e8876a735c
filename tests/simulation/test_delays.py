"""Delayed messages, cancellations and changes with power failures and small segments: each is delivered once."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import alter, cancel, delay, listed, message, now_ms, values
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import InvalidRecordState
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))
DELAYS_MS = (0, 10, 50, 200, 1000, 3000, 20_000)
STARTS_MAX = 4


@pytest.fixture(autouse=True)
def _small_segments_and_frequent_maintenance() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr("headrace.broker.delays.delayed_log.SWEEP_BYTES_MIN", 3000)
    patch.setattr("headrace.broker.controller.colocated_topics._SEGMENT_BYTES", 2500)
    patch.setattr("headrace.broker.delays.delay_coordinator._SWEEP_SECONDS", 1.0)
    patch.setattr("headrace.broker.delays.delay_shard._TRIM_SECONDS", 2.0)
    yield
    patch.undo()
    gc.collect()  # otherwise pytest would report task exceptions that were never retrieved, after the tests


class Sender:
    """The messages sent, the offsets acknowledged, and the results of cancellations: None if unknown."""

    def __init__(self, simulated_broker: SimulatedBroker, chance: Random) -> None:
        self.simulated_broker = simulated_broker
        self.chance = chance
        self.sent: list[bytes] = []
        self.acknowledged: dict[bytes, int] = {}
        self.cancelled: dict[bytes, bool | None] = {}

    async def run(self) -> None:
        for _ in range(self.chance.randrange(5, 40)):
            draw = self.chance.random()
            if draw < 0.6:
                await self._send()
            elif draw < 0.75 and self.acknowledged:
                await self._cancel(self.chance.choice(sorted(self.acknowledged)))
            elif draw < 0.8 and self.acknowledged:
                offset = self.acknowledged[self.chance.choice(sorted(self.acknowledged))]
                await alter(
                    self.simulated_broker, [(offset, now_ms(self.simulated_broker) + self.chance.randrange(5000))]
                )
            else:
                await asyncio.sleep(self.chance.random() * 2)

    async def _send(self) -> None:
        records = []
        for _ in range(self.chance.randrange(1, 5)):
            value = b"%d" % len(self.sent) + b"." * self.chance.randrange(200)
            self.sent.append(value)
            records.append(message(self.simulated_broker, value, b"k", delay=f"{self.chance.choice(DELAYS_MS)}ms"))
        offset = await delay(self.simulated_broker, *records)
        self.acknowledged.update((record.value or b"", offset + at) for at, record in enumerate(records))

    async def _cancel(self, value: bytes) -> None:
        self.cancelled.setdefault(value, None)
        code = await cancel(self.simulated_broker, self.acknowledged[value])
        if code == 0:
            self.cancelled[value] = True
        elif code == InvalidRecordState.code and self.cancelled[value] is None:
            self.cancelled[value] = False

    def check(self, found: Counter[bytes]) -> None:
        assert set(found) <= set(self.sent)
        assert [value for value, times in found.items() if times > 1] == []
        for value in self.acknowledged:
            is_cancelled = self.cancelled.get(value, False)
            if is_cancelled is not None:
                assert found[value] == int(not is_cancelled), value


async def run_until_power_failure(simulated_broker: SimulatedBroker, sender: Sender) -> bool:
    """Return whether the sender finished before the power failed."""
    running = simulated_broker.host.start(sender.run(), "sender")
    await asyncio.wait([running], timeout=120)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_message_is_delivered_once(seed: int) -> None:
    chance = Random(seed)
    world = World(seed=seed, shuffle=True)
    simulated_broker = SimulatedBroker(world)
    world.run(simulated_broker.open())
    world.run(delayed.make(simulated_broker))
    sender = Sender(simulated_broker, chance)
    for _ in range(chance.randrange(1, STARTS_MAX + 1)):
        simulated_broker.host.disk.crash_after(chance.randrange(5, 400))
        if world.run(run_until_power_failure(simulated_broker, sender)):
            simulated_broker.kill(keep_page_cache=chance.random() < 0.5)
        simulated_broker.registry.crash()
        world.run(simulated_broker.open())
    world.run(simulated_broker.pass_time(40))
    world.run(simulated_broker.restart())
    world.run(simulated_broker.pass_time(5))
    sender.check(Counter(world.run(values(simulated_broker))))
    assert world.run(listed(simulated_broker)).waiting == 0
    simulated_broker.check()
    world.close()
