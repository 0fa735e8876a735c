"""Update the in-sync replicas of the partitions that this broker leads: add caught-up followers, remove lagging ones.

A change is proposed by a compare-and-set of the partition record. From the proposal until its outcome has been read, a
batch is committed only when both the old and the new in-sync replicas have it. An unknown outcome stays pending until
the registry has been read again. A broker whose session is in doubt proposes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from headrace.broker.cluster.membership import BrokerRegistration
from headrace.broker.partition import Partition
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller.leadership import remove_from_isr
from headrace.machines.replication.in_sync import IsrState
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import Nodes, PartitionRecord
from headrace.registry.brokers import decode_number, epoch_key
from headrace.registry.interface import Check, Registry, Set
from headrace.registry.topics import change_partition, encode_partition, partition_key
from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.5
_PARTITIONS_PER_YIELD = 256


class IsrUpdater:
    def __init__(
        self, catalogue: Catalogue, registry: Registry, membership: BrokerRegistration, clock: Clock, node_id: int
    ) -> None:
        self._catalogue = catalogue
        self._registry = registry
        self._membership = membership
        self._clock = clock
        self._node_id = node_id

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self._suspend_writes()
            seen = 0
            for topic in list(self._catalogue):
                for partition in list(topic.replicas.values()):
                    seen += 1
                    if seen % _PARTITIONS_PER_YIELD == 0:
                        await asyncio.sleep(0)
                    if self._membership.session_valid:
                        await self._update_isr(topic, partition)

    def _suspend_writes(self) -> None:
        """Suspend writes to partitions whose leader was most likely replaced, because its session is in doubt and no
        in-sync follower fetches from it any more. Producers then look for the new leader instead of waiting."""
        patience = self._catalogue.config.replica_lag_time_max_ms / 1000
        since = self._clock.monotonic() - patience
        invalid_since = self._membership.session_invalid_since
        is_doubtful = invalid_since is not None and invalid_since < since
        for topic in self._catalogue:
            for partition in topic.led.values():
                in_sync = partition.in_sync
                suspended = is_doubtful and in_sync is not None and in_sync.are_followers_silent(since)
                if partition.writes_suspended is not suspended:
                    partition.suspend_writes(suspended)
                    topic.cached_metadata = None

    async def _update_isr(self, topic: Topic, partition: Partition) -> None:
        partition_record = topic.partition_records.get(partition.index)
        if partition_record is None or len(partition_record.replicas) == 1:
            return
        if partition.log.failed is not None or partition.log.quarantined is not None:
            # The last replica with all committed records stays in sync unless its log is damaged: after a failed write
            # its disk still has all acknowledged records, and it can lead again after a restart.
            others = {*partition_record.isr, *partition_record.elr} - {self._node_id}
            if self._node_id in partition_record.isr + partition_record.elr and (
                others or partition.log.quarantined is not None
            ):
                await self._leave_isr(topic, partition)
            return
        in_sync = partition.in_sync
        if in_sync is None:
            return
        if in_sync.proposed is not None:
            await self._read_proposal_result(topic, partition)
            return
        record = self._next_record(topic, partition)
        version = topic.versions.get(partition.index)
        if record is None or version is None or topic.partition_records[partition.index] != in_sync.record:
            return
        checks = self._checks(in_sync, record.isr)
        if checks is None:
            return
        in_sync.propose(record)
        key = partition_key(topic.id, partition.index)
        try:
            await self._registry.commit([*checks, Set(key, encode_partition(record), version)])
            log.info("in-sync replicas changed partition=%s isr=%s", partition, list(record.isr))
        except HeadraceError as error:
            log.info("changing the in-sync replicas failed, will retry partition=%s error=%s", partition, error)
        await self._read_proposal_result(topic, partition)

    def _next_record(self, topic: Topic, partition: Partition) -> PartitionRecord | None:
        in_sync = partition.in_sync
        assert in_sync is not None
        now = self._clock.monotonic()
        in_sync.record_caught_up(partition.log.end_offset, now)
        lag_seconds_max = self._catalogue.config.replica_lag_time_max_ms / 1000
        wanted = in_sync.proposal(
            self._catalogue.nodes, now, lag_seconds_max, partition.high_watermark, topic.config.min_insync_replicas
        )
        partition.move()  # the replicas that the high watermark depends on may have changed
        start_offset = partition.log.start_offset
        if in_sync.low_watermark(start_offset, self._catalogue.nodes) < start_offset:
            partition.notify_followers()  # the log start advanced by retention, which followers do not know yet
        return wanted

    async def _leave_isr(self, topic: Topic, partition: Partition) -> None:
        """Remove this replica from the in-sync replicas after a disk failure, so that another one can lead."""
        try:
            await leave_isr(self._registry, topic, partition.index, self._node_id)
        except HeadraceError as error:
            log.error("log failed, and the leadership cannot be handed over partition=%s error=%s", partition, error)

    def _checks(self, in_sync: IsrState, isr: Nodes) -> list[Check] | None:
        """Return checks that added followers are still the brokers that fetched: one that was restarted without its
        disk has no records. None if a follower has already changed."""
        checks = []
        for node_id in isr:
            if node_id in in_sync.record.isr:
                continue
            entry = self._catalogue.mirror.get(epoch_key(node_id))
            if entry is None or decode_number(entry) != in_sync.broker_epoch(node_id):
                return None
            checks.append(Check(entry.key, entry.version))
        return checks

    async def _read_proposal_result(self, topic: Topic, partition: Partition) -> None:
        epoch = partition.leader_epoch
        try:
            await self._catalogue.mirror.read([partition_key(topic.id, partition.index)])
        except HeadraceError:
            return
        record = topic.partition_records.get(partition.index)
        if partition.is_leader and partition.leader_epoch == epoch and record is not None:
            partition.update(record)


async def leave_isr(registry: Registry, topic: Topic, index: int, node_id: int) -> PartitionRecord | None:
    """Remove a broker that may lack acknowledged records from ISR and ELR; return the changed record, if any."""
    without_broker = partial(remove_from_isr, node_id=node_id, min_insync=topic.config.min_insync_replicas)
    return await change_partition(registry, topic.id, index, without_broker)
