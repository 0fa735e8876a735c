"""The simulation of a streaming query with joint commits from one seed: drivers, tasks, brokers and network fail.

- After healing, the drivers continue and no transaction stays open, within the time limit.
- Every batch is written whole, once and in order, by one attempt of one driver, and agrees with the drivers' responses.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random

from tests.simulation.clients import PARTITIONS, Client
from tests.simulation.cluster_faults import Faults
from tests.simulation.cluster_scenario import DISK_DELAYS, SETTINGS, ClientT, NotRecovered
from tests.simulation.joint_commit_drivers import JOINT_COMMIT_NAME, RESULTS, Batch, Driver, Query

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.metadata import TopicPartition
from headrace.client.transactions.joint_commits import committed_sequence
from headrace.machines.transactions.joint_commits import joint_commit_owner_id
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.broker import SimBroker
from headrace.testkit.cluster import SimCluster
from headrace.testkit.history import History
from headrace.testkit.world import World

FAULTS_SECONDS = (3.0, 10.0)
RECOVERY_SECONDS = 90.0
POLL_SECONDS = 0.25
MORE_BATCHES = 2  # that must be done after healing
COMPACTED = {
    "transaction.state.log.segment.bytes": "2000",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.1",
}
BATCH_BY_BATCH = {"replica.fetch.max.bytes": "100", "replica.fetch.wait.max.ms": "100"}


class JointCommitScenario:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"bundles {seed}")
        self.seed = seed
        self.world = World(seed)
        settings = {**SETTINGS, "transaction.state.log.num.partitions": "2"}
        if self.random.random() < 0.5:
            settings |= COMPACTED
        if self.random.random() < 0.5:
            settings |= BATCH_BY_BATCH
        self.world.network.retry_seconds = self.random.choice((0.0, 0.5, 8.0))
        self.cluster = SimCluster(self.world, 3, settings)
        for broker in self.cluster.brokers.values():
            broker.host.disk.delay_seconds = self.random.choice(DISK_DELAYS[:2])
        self.query = Query()
        self.drivers = [self._driver(f"driver{number}") for number in range(self.random.choice((1, 2, 2)))]
        self.crash_chance = self.random.choice((0.0, 0.3, 0.8))
        self.crashing: set[asyncio.Task[None]] = set()
        self.missing = ""
        self.found: list[list[bytes]] = []

    def run(self) -> list[Anomaly]:
        """Run the seed; return the anomalies."""
        gc.disable()
        try:
            self.world.run(self._main())
        finally:
            self.world.close()
            gc.enable()
        return list(find_batch_anomalies(self.query.batches, self.found))

    @property
    def digest(self) -> str:
        return f"{self.world.digest} {self.found}"

    def _driver(self, name: str) -> Driver:
        driver = self._client(Driver, name)
        driver.query = self.query
        driver.on_commit = self._crash_coordinator_sometimes
        driver.uses_v2 = self.random.random() < 0.5
        return driver

    def _client(self, kind: type[ClientT], name: str) -> ClientT:
        return kind(self.world.host(name), self.cluster.bootstrap, History(), self.seed)

    async def _main(self) -> None:
        await self.cluster.start_all()
        configs = {"min.insync.replicas": "2", "segment.bytes": "4000"}
        await TopicAdmin(self.drivers[0].cluster).create(NewTopic(RESULTS, PARTITIONS, 3, configs))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(driver.run(), name=driver.name) for driver in self.drivers]
            await self._fail()
            alarm = self.world.loop.call_later(RECOVERY_SECONDS, self._give_up)
            await self._recover(tasks)
        await self._wait_until_stable()
        alarm.cancel()
        await self._read_results()

    async def _fail(self) -> None:
        names = [driver.name for driver in self.drivers]
        count = self.random.choice((0, 1, 1, 2))
        faults = Faults(
            self.world, self.cluster, names, self.random, may_replace_disk=count == 1 and not self.crash_chance
        )
        calm_seconds = self.random.choice((0.05, 0.2, 0.6))
        streams = [asyncio.create_task(faults.run(calm_seconds)) for _ in range(count)]
        await asyncio.sleep(self.random.uniform(*FAULTS_SECONDS))
        self.crash_chance = 0.0
        if self.crashing:
            await asyncio.wait(self.crashing)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams)
            for stream in streams:
                if not stream.cancelled():
                    stream.result()

    def _crash_coordinator_sometimes(self) -> None:
        """Kill the coordinator of the joint commit in the middle of a commit, with a certain chance."""
        if not self.crashing and self.random.random() < self.crash_chance:
            task = asyncio.create_task(self._crash())
            self.crashing.add(task)
            task.add_done_callback(self.crashing.discard)

    async def _crash(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, self.random.choice((0.005, 0.02, 0.06))))
        broker = next((one for one in self.cluster.up if self._coordinates(one)), None)
        if broker is None:
            return
        if self.random.random() < 0.5:
            broker.kill()
        else:
            broker.cut_power()
        await asyncio.sleep(self.random.choice((0.0, 0.3, 2.0)))
        if broker.is_down:
            await broker.start()

    def _coordinates(self, broker: SimBroker) -> bool:
        assert broker.broker is not None
        try:
            return broker.broker.transactions.find(joint_commit_owner_id(JOINT_COMMIT_NAME)) is not None
        except HeadraceError:
            return False

    async def _recover(self, tasks: list[asyncio.Task[None]]) -> None:
        self.missing = "not all brokers are up"
        await self.cluster.heal()
        for driver, task in zip(self.drivers[1:], tasks[1:], strict=True):
            driver.is_done = True
            self.missing = f"{driver.name} is not done"
            await asyncio.wait([task])
        self.drivers[0].catches_up = True
        wanted = self.query.done + MORE_BATCHES
        while self.query.done < wanted:
            self.missing = f"the query is at batch {self.query.done} instead of {wanted}"
            await asyncio.sleep(POLL_SECONDS)
        self.drivers[0].is_done = True
        await asyncio.wait([*tasks, *self.query.late])
        while unhealthy_partitions := self.cluster.unhealthy_partitions():
            self.missing = "; ".join(unhealthy_partitions)
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_until_stable(self) -> None:
        """Wait until open transactions have timed out."""
        while True:
            leaders = [self._is_stable(partition) for partition in range(PARTITIONS)]
            if all(leaders):
                return
            self.missing = f"a transaction stays open: {leaders}"
            await asyncio.sleep(POLL_SECONDS)

    def _is_stable(self, partition: int) -> bool:
        for broker in self.cluster.up:
            assert broker.broker is not None
            topic = broker.broker.catalogue.find(RESULTS)
            led = None if topic is None else topic.led.get(partition)
            if led is not None and led.is_leader:
                return led.last_stable_offset == led.log.end_offset
        return False

    async def _read_results(self) -> None:
        """Read the results with a new client, which has no dead connections."""
        cluster = self._client(Client, "judge").cluster
        self.found = [[] for _ in range(PARTITIONS)]
        targets = {TopicPartition(RESULTS, partition): 0 for partition in range(PARTITIONS)}
        settings = ConsumerSettings(read_committed=True)
        async with Consumer(cluster, partitions=targets, settings=settings) as consumer:
            while records := await consumer.poll(timeout_seconds=2.0):
                for record in records:
                    self.found[record.partition].append(record.value or b"")
        last = await committed_sequence(cluster, JOINT_COMMIT_NAME)
        assert last >= max(self.query.done, self.query.confirmed), f"{last} is the last sequence"
        cluster.close()

    def _give_up(self) -> None:
        self.world.loop.halt(NotRecovered(f"after {RECOVERY_SECONDS} s: {self.missing}"))


def find_batch_anomalies(batches: list[Batch], found: list[list[bytes]]) -> Iterator[Anomaly]:
    """Compare the committed records, partition by partition, with the batches."""
    written = {value: batch for batch in batches for value in batch.records}
    seen: defaultdict[int, dict[int, Batch]] = defaultdict(dict)
    for partition, values in enumerate(found):
        for value, times in Counter(values).items():
            if times > 1:
                yield Anomaly("doubled", partition, f"{value!r} is there {times} times")
            batch = written.get(value)
            if batch is None or batch.records[value] != partition:
                yield Anomaly("stray", partition, f"{value!r} was never sent")
            else:
                seen[batch.sequence][batch.token] = batch
        sequences = [written[value].sequence for value in values if value in written]
        if sequences != sorted(sequences):
            yield Anomaly("disorder", partition, f"{sequences}")
    everything = {value for values in found for value in values}
    for sequence, there in seen.items():
        for batch in there.values():
            for value in sorted(batch.records.keys() - everything):
                yield Anomaly("torn", batch.records[value], f"{value!r} is missing")
            yield from _contradictions(batch, is_passed=any(later > sequence for later in seen))
        if len(there) > 1:
            yield Anomaly("repeated", 0, f"sequence {sequence} was committed by attempts {sorted(there)}")
    for batch in batches:
        if batch.outcome and batch.records and batch.token not in seen[batch.sequence]:
            yield Anomaly("lost", 0, f"{batch} was confirmed as committed")


def _contradictions(batch: Batch, *, is_passed: bool) -> Iterator[Anomaly]:
    """Compare a committed batch with the responses that its driver got; `is_passed`: a later one is committed too."""
    if not batch.is_asked:
        yield Anomaly("unasked", 0, f"no commit of {batch} was requested")
    if batch.is_refused:
        yield Anomaly("refused", 0, f"{batch} was rejected, but is committed")
    if batch.outcome is False and not is_passed:
        yield Anomaly(
            "denied", 0, f"the response was that another attempt committed sequence {batch.sequence}, not {batch}"
        )
