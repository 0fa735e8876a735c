"""A broker: its topics, its coordinators, and the table of request handlers.

Startup order: open the registry, recover the logs, start everything else, and join the cluster when the port is bound.
A coordinator loads a group when the leadership of the group's partition begins. Shutdown order: hand over leaderships,
answer waiting fetches and group members, flush and close logs, and write the clean shutdown marker last.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection
from functools import partial

from headrace.broker.bundle_requests import BundleRequests
from headrace.broker.catalogue import Catalogue
from headrace.broker.cluster import ClusterMember
from headrace.broker.cluster_admin import ClusterAdmin
from headrace.broker.config_admin import ConfigAdmin
from headrace.broker.consumer_group_requests import ConsumerGroupRequests
from headrace.broker.coordinator import Coordinator
from headrace.broker.dead_letters import DeadLetters
from headrace.broker.dedup import DedupWindows
from headrace.broker.delay_requests import DelayRequests
from headrace.broker.delays import DelayedMessages
from headrace.broker.drain_requests import DrainRequests
from headrace.broker.election_requests import ElectionRequests
from headrace.broker.expiry import TopicExpiry
from headrace.broker.features import update_features
from headrace.broker.fetch import Fetch
from headrace.broker.find_coordinator import FindCoordinator
from headrace.broker.group_configs import GroupConfigs
from headrace.broker.group_requests import GroupRequests
from headrace.broker.handlers import Handle, Handlers
from headrace.broker.identity import BrokerIdentity
from headrace.broker.known_leaders import KnownLeaders
from headrace.broker.lease_offsets import LeaseOffsets
from headrace.broker.list_offsets import ListOffsets
from headrace.broker.membership import confirm_start, number_start
from headrace.broker.metadata import Metadata
from headrace.broker.offset_requests import OffsetRequests
from headrace.broker.offsets_log import OffsetsLog
from headrace.broker.older_registry import raise_older_registry
from headrace.broker.partition_changes import PartitionChanges
from headrace.broker.produce import Produce
from headrace.broker.push_requests import PushRequests
from headrace.broker.reassignment_requests import ReassignmentRequests
from headrace.broker.retention_acked import AckedRetention
from headrace.broker.security_requests import security_table
from headrace.broker.share_requests import ShareRequests
from headrace.broker.subscription_admin import SubscriptionAdmin
from headrace.broker.subscription_configs import SubscriptionConfigs
from headrace.broker.subscription_requests import SubscriptionRequests
from headrace.broker.subscriptions import Subscriptions
from headrace.broker.tokens import Tokens
from headrace.broker.topic_admin import TopicAdmin
from headrace.broker.transaction_coordinator import TransactionCoordinator
from headrace.broker.transaction_markers import TransactionMarkers
from headrace.broker.transaction_requests import TransactionRequests
from headrace.broker.transaction_tools import TransactionTools
from headrace.broker.transaction_verification import TransactionVerification
from headrace.broker.transactional_offsets import TransactionalOffsets
from headrace.broker.transactions_log import TransactionsLog
from headrace.broker.verified_transactions import VerifiedTransactions
from headrace.machines.fetch_sessions import FetchSessions
from headrace.machines.group_migration import MigrationPolicy
from headrace.machines.group_state import GroupConfig
from headrace.model.broker_configs import BrokerConfig
from headrace.registry.identity import load_broker_configs, store_broker_configs
from headrace.registry.interface import Registry
from headrace.registry.partitions import PartitionRecords
from headrace.registry.producer_id_floor import ProducerIdFloor
from headrace.registry.producer_ids import ProducerIds, gap_of_start
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy
from headrace.runtime.network import Network
from headrace.runtime.supervise import Supervisor
from headrace.storage.config import StoreConfig
from headrace.storage.store import LogStore, open_store
from headrace.wire import apis

log = logging.getLogger(__name__)

_HOUSEKEEPING_SECONDS = 1.0


class Broker:
    def __init__(
        self,
        catalogue: Catalogue,
        cluster: ClusterMember,
        store: LogStore,
        registry: Registry,
        identity: BrokerIdentity,
        clock: Clock,
        entropy: Entropy,
        disk: Disk,
        folder: str,
        id_blocks: ProducerIds,
    ) -> None:
        config = catalogue.config
        self.catalogue = catalogue
        self.cluster = cluster
        self.store = store
        self.registry = registry
        self.identity = identity
        self.group_configs = GroupConfigs(catalogue, registry)
        self.subscription_configs = SubscriptionConfigs(catalogue, self.group_configs, registry)
        self._clock = clock
        self._make_coordinators(id_blocks)
        sessions = FetchSessions(
            partial(entropy.integer, 1, 2**31 - 1), config.max_incremental_fetch_session_cache_slots
        )
        self.fetch = Fetch(catalogue, sessions, clock)
        self._admin = ClusterAdmin(catalogue, disk, os.path.abspath(folder), identity.node_id)
        self.dedup = DedupWindows(clock)
        catalogue.on_lead.append(self.dedup.begin)
        catalogue.on_resign.append(self.dedup.end)
        catalogue.on_topic.append(self.dedup.reconfigure)
        self._produce = Produce(catalogue, self._verification, self.dedup, store, disk, clock, self._session_valid)
        self.expiry = TopicExpiry(catalogue, clock, self._session_valid)
        self._make_queues(entropy)
        self.handlers = self._serve(entropy)
        self._admin.advertise(handler.api for handler in self.handlers)

    def _make_coordinators(self, id_blocks: ProducerIds) -> None:
        catalogue, cluster, clock, config = self.catalogue, self.cluster, self._clock, self.catalogue.config
        self.offsets_log = OffsetsLog(catalogue, clock)
        self.coordinator = Coordinator(
            self.offsets_log,
            catalogue,
            _group_config(config),
            self.group_configs.consumer_config_of,
            self.group_configs.timing_of,
            config.offset_metadata_max_bytes,
            MigrationPolicy(config.group_consumer_migration_policy.lower()),
            clock,
            self._session_expired,
        )
        verified = VerifiedTransactions()
        self._transactions_log = TransactionsLog(catalogue, clock)
        self._markers = TransactionMarkers(catalogue, cluster.peers, verified, self.store.flusher.flush, clock)
        self.transactions = TransactionCoordinator(
            self._transactions_log, self._markers, id_blocks.next, config, clock, self._session_expired
        )
        self._verification = TransactionVerification(self.transactions, self._transactions_log, verified, cluster.peers)
        self.delayed = DelayedMessages(catalogue, self.transactions.new_producer_id, self.store, clock)
        for coordinator in (self.coordinator, self.transactions, self.delayed):
            catalogue.on_lead.append(coordinator.begin)
            catalogue.on_resign.append(coordinator.end)
        catalogue.on_resign.append(verified.forget_partition)
        catalogue.on_gone.append(lambda topic: self.coordinator.forget_topic(topic.name))

    def _make_queues(self, entropy: Entropy) -> None:
        catalogue, clock = self.catalogue, self._clock
        self.dead_letters = DeadLetters(catalogue, self._produce.handle, self.cluster.peers, clock)
        self.subscriptions = Subscriptions(
            catalogue,
            self.subscription_configs.of,
            self.dead_letters.bury,
            clock,
            entropy,
            self._session_valid,
            self._subscription_names,
        )
        catalogue.on_lead.append(self.subscriptions.begin)
        catalogue.on_resign.append(self.subscriptions.end)
        self.subscription_configs.on_changed.append(self.subscriptions.reconfigure)
        self.acked_retention = AckedRetention(catalogue, self.store)
        self._subscription_admin = SubscriptionAdmin(self.subscriptions, self.subscription_configs)
        self.shares = ShareRequests(
            self.coordinator,
            catalogue,
            self.subscriptions,
            self._subscription_admin,
            self.group_configs,
            self.subscription_configs,
            self.cluster.peers,
            self.identity.node_id,
            clock,
        )

    async def _subscription_names(self, places: Collection[tuple[str, int]]) -> frozenset[str]:
        return await self.shares.standings.names(places)

    def start(self, supervisor: Supervisor) -> None:
        supervisor.spawn(self.coordinator.load(), "load groups")
        supervisor.spawn(self.transactions.load(), "transactions")
        supervisor.spawn(self.subscriptions.load(), "subscriptions")
        supervisor.spawn(self.acked_retention.run(), "settled messages")
        supervisor.spawn(self.delayed.load(), "delayed messages")
        supervisor.spawn(self.dedup.load(), "dedup windows")
        supervisor.spawn(self.expiry.run(), "expiry of topics")
        supervisor.spawn(self._keep_house(), "housekeeping")

    async def join(self, host: str, port: int) -> None:
        """Register the address, and return when requests can be served. Then accept connections and await
        `until_led`."""
        self.identity.host, self.identity.port = host, port
        await self.cluster.join(host, port, self.identity.rack)

    async def until_led(self) -> None:
        await self.cluster.until_led()

    async def stop(self) -> None:
        """Flush and close everything. The listeners must already be closed."""
        await self.store.close(self.identity.epoch)
        await self.cluster.leave()
        await self.registry.close()

    def answer_waiting(self) -> None:
        """Answer all requests that wait for events that will no longer occur."""
        self.fetch.stop()
        self.coordinator.stop()
        self.transactions.stop()
        self.subscriptions.stop()
        self.shares.stop()
        self.delayed.stop()
        self.dedup.stop()

    def _serve(self, entropy: Entropy) -> Handlers:
        metadata = Metadata(self.catalogue, self.identity, self.offsets_log.ensure)
        topics = TopicAdmin(self.catalogue, self._clock)
        configs = ConfigAdmin(
            self.catalogue,
            self.group_configs,
            self.subscription_configs,
            self.identity,
            partial(store_broker_configs, self.registry),
        )
        list_offsets = ListOffsets(self.catalogue, self._session_expired)
        coordinators = FindCoordinator(self.catalogue, self.offsets_log, self._transactions_log)
        changes = PartitionChanges(self.catalogue, PartitionRecords(self.registry))
        reassignments = ReassignmentRequests(self.catalogue, changes)
        return Handlers(
            {
                apis.PRODUCE: self._produce.handle,
                apis.FETCH: self.fetch.handle,
                apis.LIST_OFFSETS: list_offsets.handle,
                apis.METADATA: metadata.handle,
                apis.FIND_COORDINATOR: coordinators.handle,
                apis.API_VERSIONS: self._admin.api_versions,
                apis.CREATE_TOPICS: topics.create_topics,
                apis.DELETE_TOPICS: topics.delete_topics,
                apis.DELETE_RECORDS: topics.delete_records,
                apis.OFFSET_FOR_LEADER_EPOCH: list_offsets.offset_for_leader_epoch,
                apis.DESCRIBE_CONFIGS: configs.describe,
                apis.LIST_CONFIG_RESOURCES: configs.list_resources,
                apis.ALTER_CONFIGS: configs.alter,
                apis.DESCRIBE_LOG_DIRS: self._admin.describe_log_dirs,
                apis.CREATE_PARTITIONS: topics.create_partitions,
                apis.INCREMENTAL_ALTER_CONFIGS: configs.alter_incrementally,
                apis.ELECT_LEADERS: ElectionRequests(self.catalogue, changes).elect,
                apis.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter,
                apis.LIST_PARTITION_REASSIGNMENTS: reassignments.list,
                apis.DRAIN_BROKER: DrainRequests(self.catalogue, self.registry).drain,
                apis.DESCRIBE_CLUSTER: metadata.describe_cluster,
                apis.DESCRIBE_QUORUM: metadata.describe_quorum,
                apis.UPDATE_FEATURES: update_features,
                apis.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
                **self._serve_groups(entropy),
                **self._serve_transactions(),
                **self._serve_queues(),
                **self.shares.table(),
                **Tokens(self.catalogue, self.registry, self._clock).table(),
                **security_table(),
            }
        )

    def _serve_groups(self, entropy: Entropy) -> dict[int, Handle]:
        groups = GroupRequests(self.coordinator, self.shares.forget, entropy)
        offsets = OffsetRequests(self.coordinator, self.catalogue, self._clock, self._session_valid)
        consumers = ConsumerGroupRequests(self.coordinator, self.catalogue, entropy)
        return {
            apis.OFFSET_COMMIT: offsets.commit,
            apis.OFFSET_FETCH: offsets.fetch,
            apis.OFFSET_DELETE: offsets.delete,
            apis.JOIN_GROUP: groups.join,
            apis.HEARTBEAT: groups.heartbeat,
            apis.LEAVE_GROUP: groups.leave,
            apis.SYNC_GROUP: groups.sync,
            apis.DESCRIBE_GROUPS: groups.describe,
            apis.LIST_GROUPS: groups.list,
            apis.DELETE_GROUPS: groups.delete,
            apis.CONSUMER_GROUP_HEARTBEAT: consumers.heartbeat,
            apis.CONSUMER_GROUP_DESCRIBE: consumers.describe,
        }

    def _serve_transactions(self) -> dict[int, Handle]:
        transactions = TransactionRequests(self.transactions, self.catalogue, self.offsets_log)
        tools = TransactionTools(self.transactions, self.catalogue, self._markers)
        offsets = TransactionalOffsets(self.coordinator, self._verification, self.catalogue, self._clock)
        return {
            apis.INIT_PRODUCER_ID: transactions.init_producer_id,
            apis.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
            apis.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
            apis.END_TXN: transactions.end,
            apis.TXN_OFFSET_COMMIT: offsets.commit,
            apis.WRITE_TXN_MARKERS: tools.write_markers,
            apis.DESCRIBE_PRODUCERS: tools.describe_producers,
            apis.DESCRIBE_TRANSACTIONS: tools.describe,
            apis.LIST_TRANSACTIONS: tools.list,
            **BundleRequests(self.transactions, self._session_valid).table(),
        }

    def _serve_queues(self) -> dict[int, Handle]:
        leases = SubscriptionRequests(self.subscriptions, self._clock)
        admin = self._subscription_admin
        delays = DelayRequests(self.delayed, self.catalogue)
        return {
            apis.LEASE: leases.lease,
            apis.SETTLE: leases.settle,
            apis.LEASE_OFFSETS: LeaseOffsets(self.subscriptions, self.subscriptions.now_ms).handle,
            apis.DESCRIBE_SUBSCRIPTIONS: admin.describe,
            apis.ALTER_SUBSCRIPTIONS: admin.alter,
            apis.MESSAGE_STATUS: admin.status,
            apis.LIST_DELAYED: delays.list,
            apis.ALTER_DELAYED: delays.alter,
            apis.DESCRIBE_PUSHES: PushRequests(self.subscription_configs).describe,
        }

    def _session_valid(self) -> bool:
        return self.cluster.membership.session_valid

    def _session_expired(self) -> bool:
        return self.cluster.membership.session_expired

    async def _keep_house(self) -> None:
        offsets_checked = self._clock.monotonic()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            config = self.catalogue.config
            self.catalogue.expire()
            self.dedup.expire()
            self.fetch.sweep()
            self.transactions.tick()
            self.subscriptions.tick()
            if self._clock.monotonic() - offsets_checked > config.offsets_retention_check_interval_ms / 1000:
                offsets_checked = self._clock.monotonic()
                self.coordinator.expire(config.offsets_retention_minutes * 60_000)


async def open_broker(
    folder: str,
    node_id: int,
    rack: str | None,
    settings: dict[str, str],
    registry: Registry,
    disk: Disk,
    network: Network,
    clock: Clock,
    entropy: Entropy,
    supervisor: Supervisor,
) -> Broker:
    """Recover the data folder and return a broker that can `join` when its port is bound."""
    config = BrokerConfig.from_settings(settings, await load_broker_configs(registry))
    if config.without_effect:
        log.warning("ignoring Kafka configs without effect configs=%s", ",".join(config.without_effect))
    store = await open_store(disk, folder, clock, _store_config(config))
    start = await number_start(registry, disk, clock, folder, node_id, entropy)
    identity = BrokerIdentity(node_id, start.cluster_id, start.epoch, rack)
    store.start(supervisor.spawn)
    catalogue = Catalogue(registry, config, clock, entropy)
    leaders = KnownLeaders(disk, folder, node_id)
    cluster = ClusterMember(catalogue, store, registry, network, clock, entropy, supervisor, node_id, start, leaders)
    floor = ProducerIdFloor(disk, folder, start.producer_id_floor)
    producer_ids = ProducerIds(registry, floor, first_gap=gap_of_start(start.cluster_id, node_id, start.epoch))
    broker = Broker(catalogue, cluster, store, registry, identity, clock, entropy, disk, folder, producer_ids)
    await cluster.open()
    await raise_older_registry(registry, catalogue, floor)
    if not start.has_all:
        await confirm_start(disk, folder, node_id, start)
    broker.start(supervisor)
    return broker


def _store_config(config: BrokerConfig) -> StoreConfig:
    return StoreConfig(
        retention_check_seconds=config.log_retention_check_interval_ms / 1000,
        cleaner_enabled=config.log_cleaner_enable,
        cleaner_backoff_seconds=config.log_cleaner_backoff_ms / 1000,
        cleaner_map_bytes=config.log_cleaner_dedupe_buffer_size,
        cleaner_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
    )
