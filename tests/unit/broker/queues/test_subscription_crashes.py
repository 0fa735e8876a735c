"""After a power cut at any step, acked messages are never delivered again, and all others are."""

from __future__ import annotations

import asyncio
import gc
from itertools import count

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import CREATE, NACK, REJECT, SubscriptionMember, alter, describe, subscribe
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.queues import acks_log
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World

TOTAL = 12


class Script:
    """A member that leases and settles in every way, and the responses that it got."""

    def __init__(self, simulated_broker: SimulatedBroker) -> None:
        self.member = SubscriptionMember(simulated_broker)
        self.sent: set[bytes] = set()
        self.tried: set[bytes] = set()  # acks without a response; some may be durable
        self.acked: set[bytes] = set()
        self.rejected: set[bytes] = set()

    async def run(self) -> None:
        simulated_broker = self.member.simulated_broker
        for number in range(TOTAL):
            await produce(simulated_broker, "jobs", b"%d" % number)
            self.sent.add(b"%d" % number)
            if number % 3 == 2:
                await self._work()
        assert (await alter(simulated_broker, CREATE, subscription="late")).error_code == 0
        await self._work()

    async def _work(self) -> None:
        messages = await self.member.lease(2)
        for at, message in enumerate(messages):
            if message.value == b"4":
                assert await self.member.settle([message], REJECT) == [0]
                self.rejected.add(message.value)
            elif at == 1:
                assert await self.member.settle([message], NACK, delay_ms=0) == [0]
            else:
                self.tried.add(message.value)
                assert await self.member.settle([message]) == [0]
                self.acked.add(message.value)


async def check(simulated_broker: SimulatedBroker, script: Script) -> None:
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    found: set[bytes] = set()
    for _ in range(TOTAL):
        responses = await script.member.lease(100, wait_ms=500)
        await script.member.ack(responses)
        found |= {one.value for one in responses}
    assert not found & script.acked, "an acked message came back"
    assert script.sent - script.tried - script.rejected - {b"4"} <= found, "a message is lost"
    await simulated_broker.pass_time(5)
    dead = simulated_broker.broker.catalogue.find("jobs.dlq")
    assert not script.rejected or dead is not None
    assert {one.backlog for one in await describe(simulated_broker, "workers")} == {0}


async def is_over(simulated_broker: SimulatedBroker, script: Script) -> bool:
    """Return whether the script ended before the power cut: it runs on the broker's host, and dies with it."""
    running = simulated_broker.host.start(script.run(), "script")
    await asyncio.wait([running], timeout=5)
    if not running.done() or isinstance(running.exception(), SimulatedPowerCut):
        return False
    running.result()
    return True


@pytest.mark.parametrize("snapshot_events", [50_000, 5])
def test_no_power_cut_loses_a_message_or_brings_back_an_acked_one(
    snapshot_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", snapshot_events)
    for operations in count():
        world = World(seed=operations)
        simulated_broker = SimulatedBroker(world)
        world.run(simulated_broker.open())
        world.run(subscribe(simulated_broker))
        if snapshot_events < 100:
            log = simulated_broker.partition("__acks.jobs").log
            log.config = log.config.__class__(segment_bytes=700)  # a load begins at a snapshot
        script = Script(simulated_broker)
        simulated_broker.host.disk.crash_after(operations)

        is_done = world.run(is_over(simulated_broker, script))
        if is_done:
            simulated_broker.kill(keep_page_cache=False)
        simulated_broker.registry.crash()
        world.run(check(simulated_broker, script))
        world.run(simulated_broker.pass_time(1))
        simulated_broker.check()
        world.close()
        if is_done:
            assert operations > 20, "there were too few operations to interrupt"
            break
    gc.collect()  # of failures without a caller, which would be reported after the tests otherwise
