"""A power cut at any step neither duplicates nor loses a delayed message."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from itertools import count

from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import TOPIC, cancel, delay, message, values
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World


class Script:
    """Messages at several times, some of them at the same; one is cancelled."""

    def __init__(self, simulated_broker: SimulatedBroker) -> None:
        self.simulated_broker = simulated_broker
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.cancels: bool | None = False  # None: nobody knows whether it was

    async def run(self) -> None:
        await self._send(b"0 a", b"0 b", delay="50ms")
        await self._send(b"0 c", b"0 d", delay="100ms")
        offset = await self._send(b"x", delay="20s")
        await asyncio.sleep(0.08)
        await self._send(b"0 e", delay="0s")
        self.cancels = None
        assert await cancel(self.simulated_broker, offset) == 0
        self.cancels = True
        await self._send(b"0 f", delay="30ms")
        await asyncio.sleep(2)  # what is over is noted

    async def _send(self, *contents: bytes, **headers: str) -> int:
        self.sent.update(contents)
        offset = await delay(
            self.simulated_broker, *[message(self.simulated_broker, value, b"k", **headers) for value in contents]
        )
        self.acknowledged.update(contents)
        return offset


async def is_over(simulated_broker: SimulatedBroker, script: Script) -> bool:
    """Whether the script came to its end before the power went: it runs where the broker runs, and dies with it."""
    running = simulated_broker.host.start(script.run(), "script")
    await asyncio.wait([running], timeout=10)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


async def recover(simulated_broker: SimulatedBroker, script: Script) -> None:
    await simulated_broker.open()
    await simulated_broker.pass_time(2)
    await _check(simulated_broker, script)
    await simulated_broker.restart()
    await simulated_broker.pass_time(30)
    await _check(simulated_broker, script)
    came = b"x" in await values(simulated_broker)
    assert came or script.cancels is not False or b"x" not in script.acknowledged
    assert not (came and script.cancels)


async def _check(simulated_broker: SimulatedBroker, script: Script) -> None:
    found = Counter(await values(simulated_broker))
    due = {value for value in script.acknowledged if value != b"x"}
    assert {value: found[value] for value in due} == dict.fromkeys(due, 1)
    assert found.keys() <= script.sent
    assert max(found.values(), default=0) <= 1


def test_no_power_cut_doubles_or_loses_a_message() -> None:
    for operations in count():
        world = World(seed=operations)
        simulated_broker = SimulatedBroker(world)
        world.run(simulated_broker.open())
        world.run(delayed.make(simulated_broker, TOPIC))
        script = Script(simulated_broker)
        simulated_broker.host.disk.crash_after(operations)

        is_done = world.run(is_over(simulated_broker, script))
        if is_done:
            simulated_broker.kill(keep_page_cache=False)
        simulated_broker.registry.crash()
        world.run(recover(simulated_broker, script))
        world.run(simulated_broker.pass_time(1))
        simulated_broker.check()
        world.close()
        if is_done:
            assert operations > 20, "there was hardly anything to cut"
            break
    gc.collect()  # of the failures that nobody lived to see; else they would be reported when the tests are over
