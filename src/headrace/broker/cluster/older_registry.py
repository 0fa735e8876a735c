"""Raise a registry that is older than the data folder, before the broker joins the cluster.

A registry that was restored from an older copy would hand out producer ids again, and partitions would drop records of
new producers as duplicates; leader epochs would repeat, and replicas could not tell where their logs diverge. Evidence:

- the folder has seen producer ids that the registry's counter has not reached (`ProducerIdFloor`, and its logs);
- the folder counts more starts of this broker than the registry (`assign_broker_epoch`), also after a crash between the
  two;
- a log holds a leader epoch that is higher than the one in the partition's record.

All evidence is turned into a floor of producer ids above the registry's counter. The counter is raised last, so a crash
in the middle leaves the evidence, and the next start repeats the rest. A false alarm costs numbers, nothing else.
In-sync sets are not corrected here: one folder does not tell which replica is the most complete. Where another broker
has led in such an epoch before this one came, `foreign_logs` has set the log aside.
"""

from __future__ import annotations

import logging

from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller.leadership import raise_leader_epoch
from headrace.machines.controller.registry_rebuild import EPOCH_MARGIN, PRODUCER_ID_MARGIN
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import decode_number
from headrace.registry.counters import PRODUCER_IDS_KEY, ProducerIdFloor, advance_counter
from headrace.registry.interface import Registry
from headrace.registry.partitions import PartitionRecords

log = logging.getLogger(__name__)


async def raise_older_registry(registry: Registry, catalogue: Catalogue, floor: ProducerIdFloor) -> None:
    """The logs are open, and this broker does not lead yet."""
    held = [
        (topic.id, index, topic.places[index], partition.log)
        for topic in catalogue
        for index, partition in topic.replicas.items()
        if index in topic.places
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
        "(see docs/operations.md, Restoring an older registry) partitions=%d producer_ids=%d seen=%d",
        len(held),
        counter,
        floor.value,
    )
    records = PartitionRecords(registry)
    for topic_id, index, _, one in held:

        def raised(record: PartitionRecord, latest: int = one.epochs.latest) -> PartitionRecord | None:
            leader = catalogue.nodes.get(record.leader)
            is_leader_here = leader is not None and record.is_led_by(leader.node_id, leader.epoch)
            if is_leader_here and latest <= record.leader_epoch:
                return None  # by a broker that was started before us and has raised what it holds
            return raise_leader_epoch(record, max(latest, record.leader_epoch) + EPOCH_MARGIN)

        await records.change(topic_id, index, raised)
    await advance_counter(registry, PRODUCER_IDS_KEY, PRODUCER_ID_MARGIN, at_least=floor.value)
