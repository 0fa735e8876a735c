"""Detect a registry that was rolled back to an older copy, and repair what the rollback repeats.

    <data>/known-leaders     {"<node id>": <highest broker epoch in which that broker led a partition>, ...}

An older copy of the registry hands out numbers again: producer ids, so partitions would drop records of new producers
as duplicates; and leader epochs, so replicas could not tell where their logs diverge. This is repaired in two steps;
docs/decisions/028-leader-epochs-after-a-rollback.md explains them.

`raise_older_registry` raises the leader epochs and producer ids of a registry that is older than this data folder,
before the broker joins the cluster. Evidence:

- the folder has used producer ids that the registry's counter has not reached (`ProducerIdFloor`, and the logs);
- the folder counts more starts of this broker than the registry (`assign_broker_epoch`), also after a crash between the
  two;
- a log contains a higher leader epoch than the partition record.

All evidence is converted to a floor of producer ids above the registry's counter. The counter is raised last: after a
crash in between the evidence remains, and the next start repeats the rest. A false alarm only skips numbers. In-sync
sets are not corrected: one folder does not show which replica is the most complete.

`set_aside_foreign_logs` handles the case in which another broker, whose folder shows no evidence, started first on the
older copy and wrote in a leader epoch that this log already contains. Followers truncate by leader epoch and would not
notice where the two histories diverge.

- A broker durably adds a leader to `KnownLeaders` before it writes or replicates anything in its epoch. So a leadership
  of an unknown leader began while this broker was down, and its epoch is in this broker's log only after a rollback.
  Broker epochs increase with every start, also after a rollback (see `membership`): one number per broker is enough.
- The partition continues with the history of the other broker: this broker leaves its ISR and ELR, and its log becomes
  a stray log. A warning lists the records that are no longer in the partition. A crash at any point is safe: the next
  start finds the same until the log is moved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from headrace.broker.cluster.membership import read_json_file
from headrace.broker.replication.isr_updater import leave_isr
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller.leadership import has_foreign_history, raise_leader_epoch
from headrace.machines.controller.registry_rebuild import EPOCH_MARGIN, PRODUCER_ID_MARGIN
from headrace.model.registry_records import Leadership, PartitionRecord
from headrace.registry.brokers import decode_number
from headrace.registry.counters import PRODUCER_IDS_KEY, ProducerIdFloor, advance_counter
from headrace.registry.interface import Registry
from headrace.registry.topics import change_partition
from headrace.runtime.disk import Disk
from headrace.storage.store.flushed_offsets import LogKey
from headrace.storage.store.log_store import LogStore

log = logging.getLogger(__name__)

_NAME = "known-leaders"
_ADVICE = (
    "remove it. If the registry was restored from an older copy since this broker ran last, run "
    "`headrace registry rebuild` before the start; see docs/operations.md"
)


class KnownLeaders:
    """The leaders that this data folder has worked with. `is_new` means that the folder has no such file, because it is
    empty or was last used by an older release."""

    def __init__(self, disk: Disk, folder: str, node_id: int) -> None:
        self._disk = disk
        self._path = f"{folder}/{_NAME}"
        self._node_id = node_id
        self._starts: dict[int, int] = {}
        self.is_new = True

    async def load(self) -> None:
        found = await self._disk.run(read_json_file, self._disk, self._path, dict[int, int], _ADVICE)
        if found is not None:
            self._starts, self.is_new = found, False

    def knows(self, leadership: Leadership) -> bool:
        """Whether the leadership is known. A broker knows all leaderships of its own."""
        node_id = leadership.node_id
        return node_id == self._node_id or leadership.broker_epoch <= self._starts.get(node_id, -1)

    async def add(self, leaderships: Iterable[Leadership]) -> None:
        """Add leaderships durably."""
        starts = dict(self._starts)
        for one in leaderships:
            if not self.knows(one):
                starts[one.node_id] = max(one.broker_epoch, starts.get(one.node_id, -1))
        if self.is_new or starts != self._starts:
            await self._disk.run(self._disk.write_atomically, self._path, msgspec.json.encode(starts))
            self._starts, self.is_new = starts, False


async def set_aside_foreign_logs(
    catalogue: Catalogue, store: LogStore, registry: Registry, known: KnownLeaders, node_id: int
) -> None:
    """Call this when the logs are open, before this broker registers."""
    if known.is_new:
        return  # no leaders are known, so unknown ones cannot be detected
    foreign: list[LogKey] = []
    for topic in catalogue:
        for index, record in topic.partition_records.items():
            own_log = store.logs.get((topic.id, index))
            if node_id not in record.replicas or own_log is None or own_log.end_offset == own_log.start_offset:
                continue
            if has_foreign_history(record, own_log.epochs.latest, known.knows):
                log.warning(
                    "log diverges from the partition after a registry rollback; it is kept as a stray log and "
                    "replicated again (see docs/operations.md, Restoring an older registry) partition=%s-%d "
                    "leader_epoch=%d offsets=%d-%d",
                    topic.name,
                    index,
                    own_log.epochs.latest,
                    own_log.start_offset,
                    own_log.end_offset,
                )
                await leave_isr(registry, topic, index, node_id)
                foreign.append(own_log.key)
    await store.move_all_to_stray(foreign)


async def raise_older_registry(registry: Registry, catalogue: Catalogue, floor: ProducerIdFloor) -> None:
    """Call this when the logs are open, before this broker leads."""
    held = [
        (topic.id, index, topic.partition_records[index], partition.log)
        for topic in catalogue
        for index, partition in topic.replicas.items()
        if index in topic.partition_records
    ]
    await floor.raise_to(
        1 + max((producer_id for *_, one in held for producer_id in one.state.producer_ids()), default=-1)
    )
    counter = decode_number(await registry.get(PRODUCER_IDS_KEY))
    if any(one.epochs.latest > record.leader_epoch for _, _, record, one in held):
        await floor.raise_to(counter + 1)
    if floor.value <= counter:
        return
    log.warning(
        "the registry is older than this data folder; raising its leader epochs and producer ids "
        "(see docs/operations.md, Restoring an older registry) partitions=%d producer_ids=%d leader_starts=%d",
        len(held),
        counter,
        floor.value,
    )
    for topic_id, index, _, one in held:

        def raised(record: PartitionRecord, latest: int = one.epochs.latest) -> PartitionRecord | None:
            leader = catalogue.nodes.get(record.leader)
            is_leader_here = leader is not None and record.is_led_by(leader.node_id, leader.epoch)
            if is_leader_here and latest <= record.leader_epoch:
                return None  # by a broker that was started earlier and has raised its epochs
            return raise_leader_epoch(record, max(latest, record.leader_epoch) + EPOCH_MARGIN)

        await change_partition(registry, topic_id, index, raised)
    await advance_counter(registry, PRODUCER_IDS_KEY, PRODUCER_ID_MARGIN, at_least=floor.value)
