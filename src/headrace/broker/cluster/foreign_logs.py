"""Set aside logs whose last epochs have another history than the registry's, before the broker follows or leads.

Two leaders may write in the same leader epoch if the registry was set back to an older copy: one before, and one after
in a broker whose folder does not show that the registry is older. Followers truncate by leader epoch, so they would not
notice where the two histories part. A broker finds this at its start: the record of the partition has a leadership that
the broker does not know (`known_leaders`), in an epoch that its log already has.

The partition goes on with what was written since: this broker leaves the in-sync and eligible sets, its log becomes a
stray one, and the replica is copied again. What only that log holds is no longer in the partition; the warning names
it. The order allows a crash at any point: the next start finds the same until the log is moved.
"""

from __future__ import annotations

import logging
from functools import partial

from headrace.broker.cluster.known_leaders import KnownLeaders
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller.leadership import has_foreign_history, remove_from_isr
from headrace.registry.partitions import PartitionRecords
from headrace.storage.store.flushed_offsets import LogKey
from headrace.storage.store.log_store import LogStore

logger = logging.getLogger(__name__)


async def set_aside_foreign_logs(
    catalogue: Catalogue, store: LogStore, records: PartitionRecords, known: KnownLeaders, node_id: int
) -> None:
    """The logs are open, and this broker is not listed as up yet."""
    if known.is_new:
        return  # nothing was noted, so nothing can be told
    foreign: list[LogKey] = []
    for topic in catalogue:
        for index, record in topic.places.items():
            log = store.get(topic.id, index)
            if node_id not in record.replicas or log is None or log.end_offset == log.start_offset:
                continue
            if has_foreign_history(record, log.epochs.latest, known.knows):
                logger.warning(
                    "the log has another history than the partition, because the registry was set back to an older "
                    "copy; it is kept as a stray log, and the replica is copied again topic=%s partition=%d "
                    "leader_epoch=%d offsets=%d-%d; see docs/operations.md, Restoring an older registry",
                    topic.name,
                    index,
                    log.epochs.latest,
                    log.start_offset,
                    log.end_offset,
                )
                await _strike_out(topic, index, records, node_id)
                foreign.append(log.key)
    await store.move_all_to_stray(foreign)


async def _strike_out(topic: Topic, index: int, records: PartitionRecords, node_id: int) -> None:
    enough = min(topic.config.min_insync_replicas, len(topic.places[index].replicas))
    await records.change(topic.id, index, partial(remove_from_isr, node_id=node_id, min_insync=enough))
