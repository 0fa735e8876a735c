"""The controller: the one broker that elects partition leaders and executes reassignments.

- A broker becomes the controller by one commit that creates an ephemeral key and increments the controller epoch. Every
  later write checks that epoch, so a replaced controller cannot write.
- The controller makes no decisions while its registry session is in doubt (I13), since another one may be elected.
- Decisions are based on the mirror, which may lag behind the registry. Each write is conditional on the version of the
  record that it replaces, so a decision based on outdated data fails and is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import msgspec

from headrace.broker.cluster.membership import BrokerRegistration
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.controller import placement, reassignment
from headrace.machines.controller.colocated_topics import ConfiguredPartition, update_colocated
from headrace.model.errors import HeadraceError
from headrace.model.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.model.registry_records import ControllerRecord, PartitionRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, CONTROLLER_KEY, advance_operation, decode_number
from headrace.registry.interface import (
    Check,
    Create,
    Registry,
    RegistryConflict,
    RegistryUnavailable,
    SessionState,
    Set,
)
from headrace.registry.topics import TopicRecords, encode_partition, partition_key
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import wait_until_set

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 0.1
_TOMBSTONES_SECONDS = 3600.0
_CHANGES_PER_COMMIT = 100
_PARTITIONS_PER_YIELD = 512
_CONCURRENT_REASSIGNMENTS = 50

_PartitionChange = tuple[Topic, int, int, PartitionRecord]


class ControllerMoved(Exception):
    """Another controller was elected, or the registry session is in doubt."""


class Controller:
    def __init__(
        self, catalogue: Catalogue, registry: Registry, membership: BrokerRegistration, clock: Clock, node_id: int
    ) -> None:
        self.is_active_controller = False
        self._catalogue = catalogue
        self._registry = registry
        self._membership = membership
        self._clock = clock
        self._node_id = node_id
        self._stood: dict[ControllerRecord, int] = {}  # candidacies of this session, with the version of the epoch key
        self._wake = asyncio.Event()
        self._preferred_at = clock.monotonic()
        self._tidied: ControllerRecord | None = None  # the term in which leftovers of earlier terms were removed
        self._tombstones_due = clock.monotonic()
        membership.on_state.append(self._on_state)
        catalogue.on_brokers_change.append(self._wake.set)
        catalogue.on_partition_change.append(lambda _topic, _index: self._wake.set())
        catalogue.on_topic_change.append(lambda _topic: self._wake.set())
        catalogue.on_config_change.append(lambda _config: self._wake.set())
        catalogue.on_topic_deleted.append(lambda _topic: self._wake.set())

    async def run(self) -> None:
        """Run for election whenever there is no controller; act as the controller when elected."""
        while True:
            try:
                if self._may_stand_for_election():
                    await self._stand_for_election()
                if self._is_still_controller():
                    await self._run_as_controller()
                else:
                    await self._pause(_CHECK_SECONDS)
            except ControllerMoved:
                log.info("this broker is no longer the controller")
            except (RegistryConflict, RegistryUnavailable) as error:
                log.warning("controller election failed error=%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self.is_active_controller = False

    def _may_stand_for_election(self) -> bool:
        return (
            self._membership.session_valid
            and self._node_id in self._catalogue.nodes
            and self._catalogue.controller is None
        )

    async def _stand_for_election(self) -> None:
        """Try to become the controller; the first broker wins."""
        entry = await self._registry.get(CONTROLLER_EPOCH_KEY)
        if not self._may_stand_for_election():
            return
        epoch = decode_number(entry) + 1
        record = ControllerRecord(node_id=self._node_id, epoch=epoch)
        # Recorded before the commit: if its outcome remains unknown, the controller key will contain this record if the
        # election succeeded, possibly only after another attempt.
        self._stood[record] = 0 if entry is None else entry.version + 1
        try:
            await self._registry.commit(
                [
                    Create(CONTROLLER_KEY, msgspec.json.encode(record), self._membership.session),
                    advance_operation(CONTROLLER_EPOCH_KEY, entry, epoch),
                ]
            )
        except RegistryConflict as conflict:
            log.debug("controller election lost conflict=%s", conflict)
        await self._catalogue.mirror.read([CONTROLLER_KEY])

    async def _run_as_controller(self) -> None:
        term = self._catalogue.controller
        assert term is not None
        epoch_version = self._stood[term]
        self.is_active_controller = True
        log.info("this broker is the controller epoch=%d", term.epoch)
        while True:
            self._ensure_still_controller()
            self._wake.clear()
            changes = [change async for change in self._due()]
            if not changes:
                await self._catalogue.colocated_topics.repair_all()
                await self._remove_orphans()
                await self._expire_tombstones()
                while not await self._pause(_CHECK_SECONDS) and not self._preferred_election_due():
                    pass
                continue
            for begin in range(0, len(changes), _CHANGES_PER_COMMIT):
                await self._commit(changes[begin : begin + _CHANGES_PER_COMMIT], epoch_version)

    # Decisions

    async def _due(self) -> AsyncIterator[_PartitionChange]:
        """Yield the changes that the current set of live brokers requires."""
        seen = 0
        live = self._catalogue.live_brokers
        prefers = self._preferred_election_due()
        if prefers:
            self._preferred_at = self._clock.monotonic()
        for topic in list(self._catalogue):
            if self._catalogue.colocated_topics.owner(topic) is not None:
                continue  # decided together with its owner
            together = [topic, *self._catalogue.colocated_topics.of(topic)]
            for index in list(topic.partition_records):
                seen += 1
                if seen % _PARTITIONS_PER_YIELD == 0:
                    await asyncio.sleep(0)
                held = [one for one in together if index in one.partition_records]
                if held[:1] != [topic]:
                    continue  # it was deleted during the await
                # Co-located topics share the leader of their topic, so its configuration decides for them as well.
                allows_unclean = topic.config.unclean_leader_election_enable
                owner, *colocated_topics = [
                    ConfiguredPartition(one.partition_records[index], one.config.min_insync_replicas, allows_unclean)
                    for one in held
                ]
                changed = update_colocated(owner, colocated_topics, live, prefers=prefers)
                for one, record in zip(held, changed, strict=True):
                    if record is not None:
                        _warn_of_unclean_election(one, index, record)
                        yield one, index, one.versions[index], record
        for change in (*self._drain_changes(), *self._replica_count_changes()):
            yield change

    def _preferred_election_due(self) -> bool:
        config = self._catalogue.config
        since = self._clock.monotonic() - self._preferred_at
        return config.auto_leader_rebalance_enable and since >= config.leader_imbalance_check_interval_seconds

    def _drain_changes(self) -> Iterator[_PartitionChange]:
        """Move replicas off drained brokers, a few partitions at a time; co-located topics follow."""
        drained = self._catalogue.drained
        if not drained:
            return
        places = {
            (topic.name, index): record
            for topic in self._catalogue
            if not topic.is_colocated
            for index, record in topic.partition_records.items()
        }
        under_way = sum(reassignment.is_reassigning(record) for record in places.values())
        brokers = self._catalogue.usable_brokers()
        held = {key: record.replicas for key, record in places.items() if not reassignment.is_reassigning(record)}
        if not any(drained.intersection(replicas) for replicas in held.values()) or not brokers:
            return
        try:
            moves = placement.balance_replicas(held, brokers)
        except HeadraceError as error:
            log.warning("moving replicas off drained brokers failed error=%s", error)
            return
        for (name, index), target in moves.items():
            if under_way >= _CONCURRENT_REASSIGNMENTS:
                return
            record = places[name, index]
            if drained.intersection(record.replicas):
                under_way += 1
                topic = self._catalogue.topic(name)
                yield topic, index, topic.versions[index], reassignment.begin_reassignment(record, target)

    def _replica_count_changes(self) -> Iterator[_PartitionChange]:
        """Raise the replication of the internal topics to the configured factor, if they were created while too few
        brokers were up."""
        config, brokers = self._catalogue.config, self._catalogue.usable_brokers()
        for name, wanted in (
            (CONSUMER_OFFSETS, config.offsets_topic_replication_factor),
            (TRANSACTION_STATE, config.transaction_state_log_replication_factor),
        ):
            topic = self._catalogue.find(name)
            for index, record in () if topic is None else topic.partition_records.items():
                missing = min(wanted, len(brokers)) - len(record.replicas)
                if missing > 0 and not reassignment.is_reassigning(record):
                    others = sorted(node_id for node_id in brokers if node_id not in record.replicas)
                    first = index % len(others)  # different brokers for different partitions
                    target = (*record.replicas, *(others[first:] + others[:first])[:missing])
                    assert topic is not None
                    yield topic, index, topic.versions[index], reassignment.begin_reassignment(record, target)

    # Writes

    async def _commit(self, changes: list[_PartitionChange], epoch_version: int) -> None:
        """Write all changes in one commit; if one of them is based on outdated data, write each of them separately."""
        self._ensure_still_controller()
        operations = [
            Set(partition_key(topic.id, index), encode_partition(record), version)
            for topic, index, version, record in changes
        ]
        try:
            await self._registry.commit([Check(CONTROLLER_EPOCH_KEY, epoch_version), *operations])
        except RegistryConflict:
            entry = await self._registry.get(CONTROLLER_EPOCH_KEY)
            if entry is None or entry.version != epoch_version:
                await self._catalogue.mirror.read([CONTROLLER_KEY])
                raise ControllerMoved from None
            if len(changes) > 1:
                for change in changes:
                    await self._commit([change], epoch_version)
                return
        await self._catalogue.mirror.read([partition_key(topic.id, index) for topic, index, _, _ in changes])

    async def _remove_orphans(self) -> None:
        """Remove partitions without a topic, which remain after a deletion or an abandoned creation. Since a topic may
        be in creation now, partitions are removed only if they are older than this term or were seen as part of a
        topic. The mirror provides candidates; the registry is authoritative."""
        term = self._catalogue.controller
        orphans = self._catalogue.orphans
        if self._tidied == term:
            orphans = [topic_id for topic_id in orphans if topic_id in self._catalogue.deleted]
        if orphans:
            self._ensure_still_controller()
            await TopicRecords(self._registry).remove_orphaned_partitions(orphans)
            self._catalogue.deleted.difference_update(orphans)
        self._tidied = term

    async def _expire_tombstones(self) -> None:
        now = self._clock.monotonic()
        if now >= self._tombstones_due:
            self._tombstones_due = now + _TOMBSTONES_SECONDS
            await TopicRecords(self._registry).expire_tombstones(self._clock.now_ms())

    def _ensure_still_controller(self) -> None:
        if not self._is_still_controller():
            raise ControllerMoved

    def _is_still_controller(self) -> bool:
        """Whether this broker is the controller; also true again after a session in doubt turned out to be valid."""
        return self._membership.session_valid and self._catalogue.controller in self._stood

    async def _pause(self, seconds: float) -> bool:
        """Wait for a notification; return False if none arrived in this time."""
        if not await wait_until_set(self._wake, seconds):
            return False
        self._wake.clear()
        return True

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.HELD:
            self.is_active_controller = False
        if state is SessionState.LOST:
            self._stood.clear()  # the ephemeral key ended with the session
        self._wake.set()


def _warn_of_unclean_election(topic: Topic, index: int, record: PartitionRecord) -> None:
    if record.unclean_epoch != topic.partition_records[index].unclean_epoch:
        log.warning(
            "unclean leader election, records may be lost partition=%s-%d leader=%d leader_epoch=%d",
            topic.name,
            index,
            record.leader,
            record.leader_epoch,
        )
