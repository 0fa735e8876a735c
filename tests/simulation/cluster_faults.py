"""Faults of a simulated cluster. Each affects a component for a while and is then undone.

A seed draws a few kinds: some bugs need one kind repeatedly, others a mixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from headrace.testkit.broker import SimBroker
from headrace.testkit.cluster import ROOMY, SimCluster
from headrace.testkit.world import World

SHORT, LONG = (0.1, 0.3, 1.0), (0.2, 1.0, 3.0, 5.0)
DOWN = (0.0, 0.3, 1.0, 4.0)
DELAYS = (0.001, 0.02, 0.2)


class Faults:
    """`may_replace_disk`: no other faults happen at the same time, and every partition has another replica. `extra`:
    faults of the seed's features, in addition to those drawn here."""

    def __init__(
        self,
        world: World,
        cluster: SimCluster,
        clients: Sequence[str],
        random: Random,
        *,
        may_replace_disk: bool,
        extra: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self.may_replace_disk = may_replace_disk
        self._is_sync_failing = False
        self._world = world
        self._cluster = cluster
        self._clients = clients
        self._random = random
        every: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._cut_power,
            self._cut_power_at_some_write,
            self._cut_power_of_all,
            self._stop,
            self._bounce,
            self._pause,
            self._turn_clock,
            self._lose_registry,
            self._lose_session,
            self._lose_ensemble,
            self._isolate,
            self._cut_pair,
            self._cut_ring,
            self._cut_client,
            self._slow_down,
            self._reset,
            self._delay,
            self._fail_to_sync,
            self._fill_disk,
            self._replace_disk,
        ]
        self._kinds = random.sample(every, random.choice((1, 2, 4, len(every))))
        self._kinds += extra

    async def run(self, calm_seconds: float) -> None:
        """Inject one fault after the other until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 2 * calm_seconds))
            await self._random.choice(self._kinds)()

    def _one(self) -> SimBroker:
        """Choose a broker, with a preference for leaders."""
        leaders = self._cluster.leaders()
        if leaders and self._random.random() < 0.5:
            return self._cluster.brokers[self._random.choice(leaders)]
        return self._random.choice(list(self._cluster.brokers.values()))

    async def _last(self, seconds: Sequence[float]) -> None:
        await asyncio.sleep(self._random.choice(seconds))

    async def _return(self, *brokers: SimBroker) -> None:
        for broker in brokers:
            await asyncio.sleep(self._random.choice(DOWN))
            if broker.is_down:
                if self._random.random() < 0.2:
                    broker.host.disk.crash_after(self._random.randrange(20))
                await broker.start()
                broker.host.disk.crash_after(ROOMY)

    # Of one broker

    async def _kill(self) -> None:
        broker = self._one()
        broker.kill()
        await self._return(broker)

    async def _cut_power(self) -> None:
        broker = self._one()
        broker.cut_power(silently=self._random.random() < 0.3)
        await self._return(broker)

    async def _cut_power_at_some_write(self) -> None:
        broker = self._one()
        broker.host.disk.crash_after(self._random.randrange(self._random.choice((5, 30, 200))))
        await self._last(LONG)
        await self._return(broker)

    async def _cut_power_of_all(self) -> None:
        for broker in self._cluster.brokers.values():
            broker.cut_power()
        brokers = list(self._cluster.brokers.values())
        await self._return(*self._random.sample(brokers, len(brokers)))

    async def _stop(self) -> None:
        broker = self._one()
        if broker.is_up:
            await broker.stop()
        await self._return(broker)

    async def _bounce(self) -> None:
        broker = self._one()
        broker.kill()
        await broker.start()

    async def _pause(self) -> None:
        broker = self._one()
        if not broker.host.is_paused:
            broker.host.pause(seconds := self._random.choice(LONG))
            await asyncio.sleep(self._random.choice((0.0, seconds)))

    async def _turn_clock(self) -> None:
        self._one().host.clock.jump(self._random.choice((-60_000, -2000, 2000, 60_000)))

    async def _fail_to_sync(self) -> None:
        """The sync of one log fails; the log stays failed until the broker restarts. One broker at a time: a partition
        whose two replicas both fail to sync has none left that may lead."""
        broker = self._one()
        if broker.is_up and not self._is_sync_failing:
            self._is_sync_failing = True
            broker.fail_next_sync("*.log")
            await self._last(LONG)
            broker.kill()
            await self._return(broker)
            self._is_sync_failing = False

    async def _fill_disk(self) -> None:
        broker = self._one()
        broker.host.disk.capacity_bytes = self._random.choice((0, 20_000))
        await self._last(SHORT)
        broker.host.disk.capacity_bytes = ROOMY

    async def _replace_disk(self) -> None:
        """Replace a disk only while all replicas are in sync, and wait until it is replicated again."""
        broker = self._one()
        if self.may_replace_disk and broker.is_up and not self._cluster.unhealthy_partitions():
            broker.kill()
            broker.host.replace_disk()
            await broker.start()
            while self._cluster.unhealthy_partitions():
                await asyncio.sleep(SHORT[0])

    # Of the registry

    async def _lose_registry(self) -> None:
        broker = self._one()
        self._cluster.disconnect(broker, silently=self._random.random() < 0.5)
        await self._last(LONG)
        self._cluster.reconnect(broker)

    async def _lose_session(self) -> None:
        self._cluster.expire(self._one())

    async def _lose_ensemble(self) -> None:
        for broker in self._cluster.brokers.values():
            self._cluster.disconnect(broker, silently=False)
        await self._last(LONG)
        for broker in self._cluster.brokers.values():
            self._cluster.reconnect(broker)

    # Of the network

    async def _isolate(self) -> None:
        broker = self._one()
        self._cluster.isolate(broker, inward=self._random.random() < 0.7, outward=self._random.random() < 0.7)
        if self._random.random() < 0.4:
            self._cluster.disconnect(broker, silently=True)
        await self._last(LONG)
        self._world.network.heal()
        self._cluster.reconnect(broker)

    async def _cut_pair(self) -> None:
        a, b = self._random.sample(list(self._cluster.brokers.values()), 2)
        self._world.network.cut(a.host.name, b.host.name, one_way=self._random.random() < 0.5)
        await self._last(LONG)
        self._world.network.heal()

    async def _cut_ring(self) -> None:
        self._cluster.cut_ring()
        await self._last(LONG)
        self._world.network.heal()

    async def _cut_client(self) -> None:
        ends = self._random.sample((self._random.choice(self._clients), self._one().host.name), 2)
        self._world.network.cut(*ends, one_way=self._random.random() < 0.5)
        await self._last(SHORT)
        self._world.network.heal()

    async def _slow_down(self) -> None:
        a, b = self._random.sample(list(self._cluster.brokers.values()), 2)
        self._world.network.slow(a.host.name, b.host.name, self._random.choice((2_000.0, 50_000.0)))
        await self._last(LONG)
        self._world.network.speed_up()

    async def _reset(self) -> None:
        names = [*self._clients, *(broker.host.name for broker in self._cluster.brokers.values())]
        self._world.network.reset(self._one().host.name, self._random.choice(names))

    async def _delay(self) -> None:
        self._world.network.delay_seconds = (0.00005, self._random.choice(DELAYS))
        await self._last(LONG)
        self._world.network.delay_seconds = (0.00005, DELAYS[0])
