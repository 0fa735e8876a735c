"""The registry is replaced by an older copy while all brokers are down, as when an operator restores a backup.

The copy lacks newer topics, and its leader epochs, in-sync sets, broker epochs and producer ids are older. The operator
runs `headrace registry rebuild` before the start, or starts without it and adopts the stray logs later. The rules are
those of docs/operations.md, decision 024 and `broker/cluster/registry_rollback.py`:

- No log is deleted. A log that the registry does not know moves to `stray/`, and has all its records after its topic is
  adopted.
- No producer id is allocated twice. After the rollback, no leader epoch of a partition has two leaders, and no leader
  uses an epoch that its own log contains (checked by `SimCluster`).
- No acknowledged record of a topic in the copy is lost, if every replica that the copy calls in sync or eligible was
  still so when the brokers stopped. This does not hold where such a replica has fallen behind, or its partition was
  reassigned (operations.md, "Replicated topics"); the operator does not use such a copy. In some seeds the operator
  accepts a loss for `ledger` (`accepts_loss`) and starts a replica that has fallen behind first: then the replicas of
  `ledger` must be equal after the run. In these seeds only `ledger` and the counters are older.
- State that only the registry has (configs of groups and subscriptions, drained brokers) is as old as the copy; the
  operator does not use a copy in which it differs. A topic whose name a start without `rebuild` reuses, such as
  `__consumer_offsets`, cannot be adopted: if the copy lacks one that other features need, the operator runs `rebuild`.
- Without `rebuild`, the first broker may find no sign of the rollback in its folder. It then reuses leader epochs in
  which another broker, still down, has written (seed 151). That broker sets its log aside when it starts
  (`broker/cluster/registry_rollback.py`), so that no two logs diverge within an epoch.
- A stray log may remain where the registry knows the partition but does not place it on this broker (an operator
  drained the broker while it was down, seed 1162), or where it was set aside because of its different history: decision
  024 leaves both to an operator. A log whose topic the registry does not know is adopted, even if the response to the
  creation was lost (seed 1168).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import (
    LONG_MAX,
    POLL_SECONDS,
    WITHOUT_GAPS,
    Draft,
    Feature,
    TopicWriter,
    create_topic,
    record_final_logs,
    stored,
)
from tests.simulation.features.registry_tools import adopt, rebuild

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.errors import raise_for_code
from headrace.client.produce.producer import Delivery, Producer
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.brokers import BROKERS_KEY, CONTROLLER_EPOCH_KEY
from headrace.registry.counters import PRODUCER_IDS_KEY
from headrace.registry.interface import RegistryEntry, is_beneath
from headrace.registry.topics import (
    PARTITIONS_KEY,
    TOMBSTONES_KEY,
    TOPICS_KEY,
    decode_partition,
    decode_topic,
    partition_key,
)
from headrace.storage.store.data_folder import folder_name
from headrace.storage.store.stray_logs import stray_logs
from headrace.testkit.anomalies import Anomaly, diverged, find_unseen
from headrace.testkit.broker import DATA, SimBroker
from headrace.testkit.history import History, SendOperation
from headrace.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "ledger"
PARTITIONS = 2
LATE, BRIEF = "late", "brief"
LATE_TOPICS = 3
OWN_TOPICS = {TOPIC, *(f"{LATE}{number}" for number in range(LATE_TOPICS))}
PATIENCE = 20  # check a registry with which the copy cannot be used
OUT_OF_SYNC_SECONDS = 3.0
DOWN_SECONDS = (0.0, 0.0, 0.3, 2.5)
ALONE_SECONDS = 10.0
"""How long a broker that was left behind leads alone, in reused leader epochs: long enough for writes."""
RESTORED = (TOPICS_KEY, PARTITIONS_KEY, TOMBSTONES_KEY, BROKERS_KEY, PRODUCER_IDS_KEY, CONTROLLER_EPOCH_KEY)
"""The keys that may differ between the copy and the registry, because the rules above cover them."""

Entries = Mapping[str, RegistryEntry]


ANY_CLOCK = {"message.timestamp.after.max.ms": LONG_MAX}
"""Clients' clocks may be wrong: a writer whose clock is far ahead would never succeed otherwise (seed 1800)."""


class RegistryOperator(Client):
    """Copies the registry, and restores the copy a while later, if it is still usable then."""

    feature: RolledBackRegistry

    async def work(self) -> None:
        for _ in range(self.random.choice((1, 1, 2))):
            await self.think(0.8)
            copy, left_behind = self.feature.scenario.cluster.back_up_registry(), None
            if self.feature.accepts_loss:
                left_behind = await self._leave_one_behind()
            elif self.random.random() < 0.7:
                await self._restart_all()
            await self.think(1.5)
            await self.feature.roll_back(copy, left_behind)
            await self.think(0.5)
            while self.feature.missing_topics():
                await self.feature.adopt()

    async def _restart_all(self, *but: SimBroker) -> None:
        """Restart one broker after the other, faster than replicas catch up. A killed replica of a topic with
        `flush.messages` > 1 leaves the in-sync set. The last one leaves the partition without a leader until an unclean
        election, and the feature that orders elections may be done by then (seed 832). Such a cluster is therefore
        stopped cleanly."""
        for broker in self.feature.scenario.cluster.brokers.values():
            if broker not in but:
                if self.feature.has_unflushed_topics():
                    await broker.stop()
                broker.kill()
                await broker.start()

    async def _leave_one_behind(self) -> SimBroker:
        """Keep a broker down until it is out of sync, while the others begin new leader epochs and write in them."""
        broker = self.random.choice(list(self.feature.scenario.cluster.brokers.values()))
        broker.kill()
        await asyncio.sleep(OUT_OF_SYNC_SECONDS)
        await self._restart_all(broker)
        return broker


class LateCreator(Client):
    """Creates topics while other clients write; `created` are the numbers of confirmed creations."""

    settings = IMPATIENT

    async def work(self) -> None:
        self.created: list[int] = []
        admin = TopicAdmin(self.cluster)
        for number in range(LATE_TOPICS):
            await self.think(1.5)
            if self.is_done:
                return
            with suppress(HeadraceError):
                await admin.create(NewTopic(f"{LATE}{number}", 1, self.random.choice((1, 2, 3)), ANY_CLOCK))
                self.created.append(number)


class LateWriter(TopicWriter):
    """Writes to the topics that were created late. In its history, the partition is the number of the topic."""

    creator: LateCreator

    async def work(self) -> None:
        while not self.creator.created and not self.is_done:
            await self.think(0.1)
        await super().work()

    async def submit(self, producer: Producer, draft: Draft) -> tuple[SendOperation, Delivery]:
        send = self.begin(draft)
        return send, await producer.submit(f"{LATE}{draft.partition}", draft.value, partition=0)


class IdCollector(Client):
    """Requests producer ids continuously."""

    settings = IMPATIENT

    async def work(self) -> None:
        self.ids: list[int] = []
        while not self.is_done:
            with suppress(HeadraceError):
                response: InitProducerIdResponse = await self.cluster.call(InitProducerIdRequest())
                raise_for_code(response.error_code)
                self.ids.append(response.producer_id)
            await self.think(0.2)


class RolledBackRegistry(Feature):
    recovery_seconds = 60.0  # all brokers stop, start with the older registry, and replicate with slow disks
    settings = {"auto.create.topics.enable": "false"}  # otherwise a writer would create a topic of the same name

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.replicas = self.random.choice((1, 2, 3, 3))
        self.may_replace_disk = False  # the topics that are created late may have one replica
        self.configs = {"min.insync.replicas": str(min(self.replicas, self.random.choice((1, 2)))), **ANY_CLOCK}
        self.rebuilds = self.random.random() < 0.4
        self.accepts_loss = not self.rebuilds and self.random.random() < 0.5
        self.history, self.late_history = History(), History()
        self.names: dict[UUID, str] = {}
        self.lost_logs: list[str] = []
        self.strays: list[str] = []

    def attach(self) -> None:
        client = self.scenario.create_client
        writer = client(TopicWriter, "ledger-writer", self.history)
        writer.topic, writer.draft, writer.pause_seconds = TOPIC, self._draft, 0.15
        if self.accepts_loss:  # an idempotent writer pauses after a loss, so there would be no writes in a reused epoch
            writer.producing = replace(TopicWriter.producing, idempotent=False, delivery_timeout_seconds=10.0)
        self.writers = [writer]
        self.operator = client(RegistryOperator, "registry-operator", self.history)
        self.operator.feature = self
        self.creator = client(LateCreator, "late-creator", self.late_history)
        late = client(LateWriter, "late-writer", self.late_history)
        late.creator, late.draft = self.creator, self._late_draft
        self.creator.created = []
        self.collector = client(IdCollector, "id-collector", self.history)
        self.others = [self.operator, self.creator, late, self.collector]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        value = f"{writer.name}-{number}".encode()
        return Draft(value, self.random.randrange(PARTITIONS), timestamp_ms=writer.cluster.clock.now_ms())

    def _late_draft(self, writer: TopicWriter, number: int) -> Draft:
        return Draft(f"{writer.name}-{number}".encode(), self.random.choice(self.creator.created))

    async def prepare(self, admin: TopicAdmin) -> None:
        await create_topic(admin, NewTopic(TOPIC, PARTITIONS, self.replicas, self.configs))

    # Operator

    async def roll_back(self, copy: Entries, first: SimBroker | None = None) -> None:
        """Stop all brokers, install the copy if it is usable, and start them, the given one first, else in random
        order."""
        cluster = self.scenario.cluster
        for _ in range(PATIENCE):
            if self.accepts_loss or _is_usable(copy, cluster.back_up_registry()):
                break
            await asyncio.sleep(POLL_SECONDS)
        await self._stop_all()
        now, before = cluster.back_up_registry(), self._logs()
        if self.accepts_loss:
            self._restore(_older_for_ledger(copy, now))
        elif _is_usable(copy, now):
            if self.rebuilds or not _can_start_without_rebuild(copy, now):
                copy = await rebuild(cluster, copy, self.names)
            self._restore(copy)
        brokers = self.random.sample(list(cluster.brokers.values()), len(cluster.brokers))
        for broker in sorted(brokers, key=lambda one: one is not first):
            await asyncio.sleep(self.random.choice(DOWN_SECONDS))
            if broker.is_down:
                await broker.start()
            if self.accepts_loss and broker is first:
                await asyncio.sleep(ALONE_SECONDS)
        self.lost_logs += [f"broker {node_id}: {name}" for node_id, name in sorted(before - self._logs())]

    async def adopt(self) -> None:
        """Stop all brokers, adopt the stray logs, and start the brokers."""
        cluster = self.scenario.cluster
        await self._stop_all()
        self._restore(await adopt(cluster, cluster.back_up_registry(), self.names))
        await cluster.start_all()

    def _restore(self, entries: Entries) -> None:
        """Start the broker, unless a fault has done so meanwhile."""
        cluster = self.scenario.cluster
        if all(broker.is_down for broker in cluster.brokers.values()):
            cluster.restore_registry(entries)

    async def _stop_all(self) -> None:
        """Stop the brokers cleanly, or all at the same moment, so that none acknowledges records without the others. A
        topic with `flush.messages` > 1 needs a clean stop; otherwise it has no leader until an unclean election."""
        if self.has_unflushed_topics() or self.random.random() < 0.2:
            await asyncio.gather(*(broker.stop() for broker in self.scenario.cluster.up))
        loses_power = self.random.random() < 0.5
        for broker in self.scenario.cluster.brokers.values():
            if loses_power:
                broker.cut_power()
            else:
                broker.kill()

    def has_unflushed_topics(self) -> bool:
        """Return whether a topic has `flush.messages` > 1."""
        topics = _topics(self.scenario.cluster.registry.entries).values()
        return any(int(topic.configs.get("flush.messages", "1")) > 1 for topic in topics)

    def missing_topics(self) -> list[str]:
        """Return the topics whose creation was confirmed, or that have logs."""
        held = {self.names[UUID(hex=name.partition("-")[0])] for _, name in self._logs()}
        known = _topics(self.scenario.cluster.registry.entries)
        return sorted({*held, *(f"{LATE}{number}" for number in self.creator.created)} - known.keys())

    async def recover(self, healed: Mapping[int, int]) -> None:
        self.creator.is_done = True
        await self.scenario.until_none(lambda: self.scenario.unfinished(self.operator, self.creator))
        await self.scenario.until_none(self.scenario.cluster.unhealthy_partitions)
        await super().recover(healed)

    def _logs(self) -> set[tuple[int, str]]:
        """Return the logs of this feature's topics on each broker, wherever they are."""
        entries = self.scenario.cluster.registry.entries
        self.names |= {record.id: record.name for record in _topics(entries).values()}
        found = set()
        for node_id, broker in self.scenario.cluster.brokers.items():
            held = {*broker.host.disk.list(f"{DATA}/logs"), *(one.name for one in stray_logs(broker.host.disk, DATA))}
            found |= {(node_id, name) for name in held & self._own_folders()}
        return found

    def _stray_logs(self) -> set[tuple[int, str]]:
        """Return the stray logs that should be adopted; the module's docstring lists those that may remain."""
        places = _partitions(self.scenario.cluster.registry.entries)
        known = _topics(self.scenario.cluster.registry.entries)
        found = set()
        for node_id, broker in self.scenario.cluster.brokers.items():
            for stray in stray_logs(broker.host.disk, DATA):
                name, record = self.names.get(stray.topic_id), places.get(partition_key(*stray.key))
                is_lost = name not in known if record is None else node_id in record.replicas
                has_log = broker.host.disk.exists(f"{DATA}/logs/{folder_name(stray.key)}")
                if name in OWN_TOPICS and is_lost and not has_log:
                    found.add((node_id, stray.name))
        return found

    def _own_folders(self) -> set[str]:
        own = [topic_id for topic_id, name in self.names.items() if name in OWN_TOPICS]
        return {folder_name((topic_id, index)) for topic_id in own for index in range(PARTITIONS)}

    # Checks

    def audit(self) -> None:
        cluster = self.scenario.cluster
        record_final_logs(self.history, stored(cluster, TOPIC))
        self.history.replicas = {index: cluster.replicas(TOPIC, index) for index in range(PARTITIONS)}
        self.strays = [f"broker {node_id}: {name}" for node_id, name in sorted(self._stray_logs())]
        for number in self.creator.created:
            found = stored(cluster, f"{LATE}{number}")
            self.late_history.replicas[number] = cluster.replicas(f"{LATE}{number}", 0)
            record_final_logs(self.late_history, {number: found[0]} if found else {})

    def anomalies(self) -> Iterator[Anomaly]:
        for history in (self.history, self.late_history):
            is_kept = history is self.late_history or not self.accepts_loss
            for rule in (*WITHOUT_GAPS, find_unseen, diverged) if is_kept else (diverged,):
                yield from rule(history)
        for name in self.lost_logs:
            yield Anomaly("log deleted", 0, name)
        for name in self.missing_topics():
            yield Anomaly("topic not adopted", 0, name)
        for name in self.strays:
            yield Anomaly("log still stray", 0, name)
        for producer_id, count in Counter(self.collector.ids).items():
            if count > 1:
                yield Anomaly("producer id handed out twice", 0, str(producer_id))


def _is_usable(copy: Entries, now: Entries) -> bool:
    """Return whether the copy can be restored without a loss; see the module's docstring."""
    others = {key: one.value for key, one in now.items() if not _is_restored(key)}
    if others != {key: one.value for key, one in copy.items() if not _is_restored(key)}:
        return False
    complete = _partitions(now)
    return all(
        {*record.isr, *record.elr} <= {*complete[key].isr, *complete[key].elr}
        for key, record in _partitions(copy).items()
        if key in complete
    )


def _older_for_ledger(copy: Entries, now: Entries) -> dict[str, RegistryEntry]:
    """Return a copy in which, of all partitions, only those of `ledger` are older, and so are all counters."""
    ledger = f"{PARTITIONS_KEY}/{_topics(copy)[TOPIC].id.hex}"
    older = (ledger, BROKERS_KEY, PRODUCER_IDS_KEY, CONTROLLER_EPOCH_KEY)
    return {**now, **{key: one for key, one in copy.items() if any(key == at or is_beneath(key, at) for at in older)}}


def _is_restored(key: str) -> bool:
    return any(key == one or is_beneath(key, one) for one in RESTORED)


def _can_start_without_rebuild(copy: Entries, now: Entries) -> bool:
    """Return whether the copy lacks only topics that this feature, or no client, writes to."""
    known = _topics(copy)
    return all(
        name in OWN_TOPICS or name.startswith(BRIEF) or (name in known and known[name].partitions == record.partitions)
        for name, record in _topics(now).items()
    )


def _topics(entries: Entries) -> dict[str, TopicRecord]:
    found = (decode_topic(entry) for key, entry in entries.items() if is_beneath(key, TOPICS_KEY))
    return {record.name: record for record in found}


def _partitions(entries: Entries) -> dict[str, PartitionRecord]:
    return {key: decode_partition(entry) for key, entry in entries.items() if is_beneath(key, PARTITIONS_KEY)}
