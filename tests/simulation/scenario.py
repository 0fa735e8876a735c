"""The simulation of a single broker from one seed: clients work while its host and the network fail.

Each round has small faults (broken, slow and cut connections, a full disk, clock jumps) and one way to go down: a power
failure at some disk operation (also during a start or shutdown), SIGKILL, a clean stop, or a failed sync. Sometimes the
power fails while the broker is down. The clients live through all rounds; after healing, their histories are checked.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TypeVar

from tests.simulation.administrator import Administrator
from tests.simulation.clients import PARTITIONS, TOPIC, Auditor, Client, Member, Reader, Watcher, Writer
from tests.simulation.pipeliner import Pipeliner

from headrace.broker.broker import Broker
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.groups.offsets import END, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError, StorageFailure
from headrace.testkit.anomalies import Anomaly, find_anomalies
from headrace.testkit.broker import SimBroker
from headrace.testkit.history import History
from headrace.testkit.world import World

ClientT = TypeVar("ClientT", bound=Client)

WRITERS, MEMBERS = 2, 2
ROUNDS = (3, 5)
ROUND_SECONDS = 2.0
RECOVERY_SECONDS = 120.0  # the time limit of the recovery, from the end of the faults
DISK_DELAYS = ((0.00005, 0.002), (0.001, 0.02), (0.005, 0.2))
ROOMY = 1 << 40
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
}
TOPIC_CONFIGS = {"segment.bytes": "6000", "index.interval.bytes": "300"}


class NotRecovered(AssertionError):
    """The clients have not recovered in time after the last fault."""


class Scenario:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"scenario {seed}")
        self.world = World(seed)
        self.history = History()
        self.broker = SimBroker(self.world, self.world.host("broker"), SETTINGS)
        self.writers: list[Client] = [self._client(Writer, f"writer{number}") for number in range(WRITERS)]
        self.writers.append(self._client(Pipeliner, "pipeliner"))
        self.members = [self._client(Member, f"member{number}") for number in range(MEMBERS)]
        self.reader = self._client(Reader, "reader")
        self.watcher = self._client(Watcher, "watcher")
        self.administrator = self._client(Administrator, "administrator")
        self.faults = 0
        # The speeds vary: some bugs occur only with a slow disk, others only with a fast one.
        self.calm_seconds = self.random.choice((0.05, 0.3, 2.0))
        self.broker.host.disk.delay_seconds = self.random.choice(DISK_DELAYS)

    def run(self) -> list[Anomaly]:
        """Run the seed; return the anomalies."""
        try:
            self.world.run(self._main())
        finally:
            self.world.close()
        return find_anomalies(self.history)

    @property
    def digest(self) -> str:
        return f"{self.world.digest} {self.history.digest}"

    async def _main(self) -> None:
        await self.broker.start()
        admin = TopicAdmin(self.watcher.cluster)
        await admin.create(NewTopic(TOPIC, PARTITIONS, configs=TOPIC_CONFIGS))
        clients: list[Client] = [*self.writers, *self.members, self.reader, self.watcher, self.administrator]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(), name=client.name)
            for _ in range(self.random.randint(*ROUNDS)):
                await self._round()
            alarm = self.world.loop.call_later(RECOVERY_SECONDS, self.world.loop.halt, NotRecovered(RECOVERY_SECONDS))
            await self._recover()
            for client in clients:
                client.is_done = True
        await self._client(Auditor, "auditor").run()
        alarm.cancel()

    # Rounds

    async def _round(self) -> None:
        async with asyncio.TaskGroup() as group:
            faults = group.create_task(self._inject_small_faults())
            maintenance = group.create_task(self._run_maintenance())
            ways = (self._lose_power, self._lose_power, self._kill, self._stop, self._fail_to_sync)
            await self.random.choice(ways)()
            faults.cancel()
            maintenance.cancel()
        self._heal()
        await asyncio.sleep(self.random.choice((0.0, 0.5, 8.0)))
        if self.random.random() < 0.3:
            self.broker.cut_power()
        while not await self._start():
            await asyncio.sleep(0.1)

    async def _start(self) -> bool:
        if self.random.random() < 0.4:
            self.broker.host.disk.crash_after(self.random.randrange(20))
        started = await self.broker.start()
        self.broker.host.disk.crash_after(1 << 60)
        return started

    async def _lose_power(self) -> None:
        self.broker.host.disk.crash_after(self.random.randrange(self.random.choice((15, 150, 800))))
        await self._pass_time(2 * ROUND_SECONDS)
        if self.broker.is_up:
            self.broker.cut_power(silently=self.random.random() < 0.3)

    async def _kill(self) -> None:
        await self._pass_time(ROUND_SECONDS)
        self.broker.kill()

    async def _stop(self) -> None:
        await self._pass_time(ROUND_SECONDS)
        if self.random.random() < 0.3:
            self.broker.host.disk.crash_after(self.random.randrange(15))
        await self.broker.stop()

    async def _fail_to_sync(self) -> None:
        """The sync of one log fails; the log stays failed until the broker restarts."""
        await self._pass_time(ROUND_SECONDS)
        self.broker.fail_next_sync("*.log")
        await self._pass_time(ROUND_SECONDS)
        self.broker.kill()

    async def _pass_time(self, seconds: float) -> None:
        """Wait for about this long, or until the broker is down."""
        try:
            async with asyncio.timeout(self.random.uniform(0.0, 2 * seconds)):
                await self.broker.down()
        except TimeoutError:
            return

    # Small faults

    async def _inject_small_faults(self) -> None:
        network, host = self.world.network, self.broker.host.name
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 2 * self.calm_seconds))
            client = self.random.choice([*self.writers, *self.members, self.reader]).name
            self.faults += 1
            match self.random.randrange(8):
                case 0:
                    network.cut(client, host)
                    await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))
                case 1:
                    network.cut(*self.random.sample((client, host), 2), one_way=True)
                    await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))
                case 2:
                    network.delay_seconds = (0.00005, self.random.choice((0.001, 0.02, 0.3)))
                case 3:
                    self.broker.host.clock.jump(self.random.randint(-2000, 2000))
                case 4:
                    self.broker.host.disk.capacity_bytes = self.random.choice((0, 20_000))
                    await asyncio.sleep(self.random.choice((0.1, 2.0)))
                case _:
                    network.reset(client, host)
            self._heal()

    def _heal(self) -> None:
        self.world.network.heal()
        self.broker.host.disk.capacity_bytes = ROOMY

    async def _run_maintenance(self) -> None:
        """Write checkpoints and roll segments at random moments, not only when they are due."""
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            if self.broker.broker is not None:
                self.broker.host.start(_save_or_roll(self.broker.broker, self.random), "upkeep")

    # Recovery

    async def _recover(self) -> None:
        """After healing: every writer succeeds, then the group reads to the end."""
        self.world.network.delay_seconds = (0.00005, 0.001)
        for writer in self.writers:
            writer.is_done = True
        while not await self._is_caught_up():
            await asyncio.sleep(0.2)

    async def _is_caught_up(self) -> bool:
        targets = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        try:
            ends = await find_offsets(self.watcher.cluster, dict.fromkeys(targets, END))
            found = await self.watcher.fetch_committed()
        except HeadraceError:
            return False
        return all(found.get(target.partition, 0) == at.offset for target, at in ends.items())

    def _client(self, kind: type[ClientT], name: str) -> ClientT:
        return kind(self.world.host(name), self.broker.address, self.history, self.seed)


async def _save_or_roll(broker: Broker, random: Random) -> None:
    logs = list(broker.store.logs.values())
    log = random.choice(logs)
    try:
        if random.random() < 0.3 and log.active.size:
            log.roll()
        else:
            await log.save_checkpoint()
    except StorageFailure:
        return  # the log is being closed
