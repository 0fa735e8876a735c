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
from typing import Any

from headrace.broker.admin.cluster_admin import ClusterAdminRequests, update_features
from headrace.broker.admin.config_admin import ConfigAdminRequests
from headrace.broker.admin.metadata import MetadataRequests
from headrace.broker.admin.topic_admin import TopicAdminRequests
from headrace.broker.admin.topic_expiration import TopicExpiration
from headrace.broker.cluster.cluster_member import ClusterMember
from headrace.broker.cluster.membership import BrokerIdentity, assign_broker_epoch, confirm_broker_epoch
from headrace.broker.cluster.registry_rollback import KnownLeaders, raise_older_registry
from headrace.broker.controller.partition_requests import PartitionRequests
from headrace.broker.coordination.find_coordinator import FindCoordinatorHandler
from headrace.broker.delays.delay_coordinator import DelayCoordinator
from headrace.broker.delays.delay_requests import DelayRequests
from headrace.broker.fetch.fetch import FetchHandler
from headrace.broker.fetch.list_offsets import ListOffsetsHandler
from headrace.broker.groups.consumer_group_requests import ConsumerGroupRequests
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.broker.groups.group_requests import GroupRequests
from headrace.broker.groups.offset_requests import OffsetRequests
from headrace.broker.groups.offsets_log import OffsetsLog
from headrace.broker.handlers import RequestHandler, RequestHandlers
from headrace.broker.produce.dedup_windows import DedupWindows
from headrace.broker.produce.produce import ProduceHandler
from headrace.broker.queues.acked_retention import AckedRetention
from headrace.broker.queues.dead_letters import DeadLetterProducer
from headrace.broker.queues.redrive import RedriveRequests
from headrace.broker.queues.subscription_admin import PushRequests, SubscriptionAdminRequests
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.queues.subscription_requests import SubscriptionRequests
from headrace.broker.security.security_requests import security_handlers
from headrace.broker.security.tokens import TokenRequests
from headrace.broker.share_groups.share_requests import ShareRequests
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_admin import TransactionAdminRequests
from headrace.broker.transactions.transaction_coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.broker.transactions.transaction_requests import JointCommitRequests, TransactionRequests
from headrace.broker.transactions.transaction_verification import TransactionVerification
from headrace.broker.transactions.transactional_offsets import TransactionalOffsets
from headrace.broker.transactions.transactions_log import TransactionsLog
from headrace.broker.transactions.verified_transactions import VerifiedTransactions
from headrace.machines.fetch.fetch_sessions import FetchSessions
from headrace.model.broker_configs import BrokerConfig
from headrace.registry.configs import load_broker_configs
from headrace.registry.counters import ProducerIdFloor, ProducerIds, gap_of_start
from headrace.registry.interface import Registry
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy
from headrace.runtime.network import Network
from headrace.runtime.tasks import Supervisor
from headrace.storage.config import StoreConfig
from headrace.storage.store.log_store import LogStore, open_store
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
        producer_ids: ProducerIds,
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
        self._producer_ids = producer_ids
        self._make_coordinators()
        sessions = FetchSessions(
            partial(entropy.integer, 1, 2**31 - 1), config.max_incremental_fetch_session_cache_slots
        )
        self.fetch = FetchHandler(catalogue, sessions, clock)
        self._admin = ClusterAdminRequests(catalogue, disk, os.path.abspath(folder), identity.node_id)
        self.dedup = DedupWindows(clock)
        catalogue.on_leadership_gained.append(self.dedup.begin)
        catalogue.on_leadership_lost.append(self.dedup.end)
        catalogue.on_topic_change.append(self.dedup.reconfigure)
        self._produce = ProduceHandler(
            catalogue, self._verification, self.dedup, store, disk, clock, self._session_valid
        )
        self.topic_expiration = TopicExpiration(catalogue, clock, self._session_valid)
        self._make_queues(entropy)
        self.handlers = self._serve(entropy)
        self._admin.advertise(handler.api for handler in self.handlers)

    def _make_coordinators(self) -> None:
        catalogue, cluster, clock, config = self.catalogue, self.cluster, self._clock, self.catalogue.config
        self.offsets_log = OffsetsLog(catalogue, clock)
        self.coordinator = GroupCoordinator(
            self.offsets_log,
            catalogue,
            self.group_configs,
            clock,
            self._session_expired,
        )
        verified = VerifiedTransactions()
        self._transactions_log = TransactionsLog(catalogue, clock)
        self._markers = TransactionMarkers(catalogue, cluster.peers, verified, self.store.flusher.flush, clock)
        self.transactions = TransactionCoordinator(
            self._transactions_log, self._markers, self._producer_ids.next, config, clock, self._session_expired
        )
        self._verification = TransactionVerification(self.transactions, self._transactions_log, verified, cluster.peers)
        self.delayed = DelayCoordinator(catalogue, self.transactions.new_producer_id, self.store, clock)
        for coordinator in (self.coordinator, self.transactions, self.delayed):
            catalogue.on_leadership_gained.append(coordinator.begin)
            catalogue.on_leadership_lost.append(coordinator.end)
        catalogue.on_leadership_lost.append(verified.forget_partition)
        catalogue.on_topic_deleted.append(lambda topic: self.coordinator.forget_topic(topic.name))

    def _make_queues(self, entropy: Entropy) -> None:
        catalogue, clock = self.catalogue, self._clock
        self.dead_letters = DeadLetterProducer(catalogue, self._produce.handle, self.cluster.peers, clock)
        self.subscriptions = SubscriptionCoordinator(
            catalogue,
            self.subscription_configs.of,
            self.dead_letters.dead_letter,
            clock,
            entropy,
            self._session_valid,
            self._subscription_names,
        )
        catalogue.on_leadership_gained.append(self.subscriptions.begin)
        catalogue.on_leadership_lost.append(self.subscriptions.end)
        self.subscription_configs.on_changed.append(self.subscriptions.reconfigure)
        self.acked_retention = AckedRetention(catalogue, self.store)
        self._subscription_admin = SubscriptionAdminRequests(self.subscriptions, self.subscription_configs)
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

    async def _subscription_names(self, partitions: Collection[tuple[str, int]]) -> frozenset[str]:
        return await self.shares.offsets_lookup.names(partitions)

    def start(self, supervisor: Supervisor) -> None:
        supervisor.spawn(self._producer_ids.keep_reserve(), "producer ids")
        supervisor.spawn(self.coordinator.run(), "groups")
        supervisor.spawn(self.transactions.run(), "transactions")
        supervisor.spawn(self.subscriptions.run(), "subscriptions")
        supervisor.spawn(self.acked_retention.run(), "settled messages")
        supervisor.spawn(self.delayed.run(), "delayed messages")
        supervisor.spawn(self.dedup.run(), "dedup windows")
        supervisor.spawn(self.topic_expiration.run(), "expiry of topics")
        supervisor.spawn(self._run_housekeeping(), "housekeeping")

    async def join(self, host: str, port: int) -> None:
        """Register the address, and return when requests can be served. Then accept connections and await
        `cluster.wait_for_leaders`."""
        self.identity.host, self.identity.port = host, port
        await self.cluster.join(host, port, self.identity.rack)

    async def stop(self) -> None:
        """Flush and close everything. The listeners must already be closed."""
        await self.store.close(self.identity.epoch)
        await self.cluster.leave()
        await self.registry.close()

    def complete_waiting_requests(self) -> None:
        """Answer all requests that wait for events that will no longer occur."""
        self.fetch.stop()
        self.coordinator.stop()
        self.transactions.stop()
        self.subscriptions.stop()
        self.shares.stop()
        self.delayed.stop()
        self.dedup.stop()

    def _serve(self, entropy: Entropy) -> RequestHandlers:
        metadata = MetadataRequests(self.catalogue, self.identity, self.offsets_log.ensure, self._session_valid)
        topics = TopicAdminRequests(self.catalogue, self._clock)
        configs = ConfigAdminRequests(
            self.catalogue, self.group_configs, self.subscription_configs, self.identity, self.registry
        )
        list_offsets = ListOffsetsHandler(self.catalogue, self._session_expired)
        coordinators = FindCoordinatorHandler(self.catalogue, self.offsets_log, self._transactions_log)
        partitions = PartitionRequests(self.catalogue, self.registry)
        return RequestHandlers(
            [
                RequestHandler(apis.PRODUCE, self._produce.handle),
                RequestHandler(apis.FETCH, self.fetch.handle),
                RequestHandler(apis.LIST_OFFSETS, list_offsets.handle),
                RequestHandler(apis.METADATA, metadata.handle),
                RequestHandler(apis.FIND_COORDINATOR, coordinators.handle),
                RequestHandler(apis.API_VERSIONS, self._admin.api_versions),
                RequestHandler(apis.CREATE_TOPICS, topics.create_topics),
                RequestHandler(apis.DELETE_TOPICS, topics.delete_topics),
                RequestHandler(apis.DELETE_RECORDS, topics.delete_records),
                RequestHandler(apis.OFFSET_FOR_LEADER_EPOCH, list_offsets.offset_for_leader_epoch),
                RequestHandler(apis.DESCRIBE_CONFIGS, configs.describe),
                RequestHandler(apis.LIST_CONFIG_RESOURCES, configs.list_resources),
                RequestHandler(apis.ALTER_CONFIGS, configs.alter),
                RequestHandler(apis.DESCRIBE_LOG_DIRS, self._admin.describe_log_dirs),
                RequestHandler(apis.CREATE_PARTITIONS, topics.create_partitions),
                RequestHandler(apis.INCREMENTAL_ALTER_CONFIGS, configs.alter_incrementally),
                RequestHandler(apis.ELECT_LEADERS, partitions.elect_leaders),
                RequestHandler(apis.ALTER_PARTITION_REASSIGNMENTS, partitions.alter_reassignments),
                RequestHandler(apis.LIST_PARTITION_REASSIGNMENTS, partitions.list_reassignments),
                RequestHandler(apis.DRAIN_BROKER, partitions.drain),
                RequestHandler(apis.DESCRIBE_CLUSTER, metadata.describe_cluster),
                RequestHandler(apis.DESCRIBE_QUORUM, metadata.describe_quorum),
                RequestHandler(apis.UPDATE_FEATURES, update_features),
                RequestHandler(apis.DESCRIBE_TOPIC_PARTITIONS, metadata.describe_topic_partitions),
                *self._serve_groups(entropy),
                *self._serve_transactions(),
                *self._serve_queues(),
                *self.shares.handlers(),
                *TokenRequests(self.catalogue, self.registry, self._clock).handlers(),
                *security_handlers(),
            ]
        )

    def _serve_groups(self, entropy: Entropy) -> list[RequestHandler[Any, Any]]:
        groups = GroupRequests(self.coordinator, self.shares.forget, entropy)
        offsets = OffsetRequests(self.coordinator, self.catalogue, self._clock, self._session_valid)
        consumers = ConsumerGroupRequests(self.coordinator, self.catalogue, entropy)
        return [
            RequestHandler(apis.OFFSET_COMMIT, offsets.commit),
            RequestHandler(apis.OFFSET_FETCH, offsets.fetch),
            RequestHandler(apis.OFFSET_DELETE, offsets.delete),
            RequestHandler(apis.JOIN_GROUP, groups.join),
            RequestHandler(apis.HEARTBEAT, groups.heartbeat),
            RequestHandler(apis.LEAVE_GROUP, groups.leave),
            RequestHandler(apis.SYNC_GROUP, groups.sync),
            RequestHandler(apis.DESCRIBE_GROUPS, groups.describe),
            RequestHandler(apis.LIST_GROUPS, groups.list),
            RequestHandler(apis.DELETE_GROUPS, groups.delete),
            RequestHandler(apis.CONSUMER_GROUP_HEARTBEAT, consumers.heartbeat),
            RequestHandler(apis.CONSUMER_GROUP_DESCRIBE, consumers.describe),
        ]

    def _serve_transactions(self) -> list[RequestHandler[Any, Any]]:
        transactions = TransactionRequests(self.transactions, self.catalogue, self.offsets_log)
        tools = TransactionAdminRequests(self.transactions, self.catalogue, self._markers)
        offsets = TransactionalOffsets(self.coordinator, self._verification, self.catalogue, self._clock)
        return [
            RequestHandler(apis.INIT_PRODUCER_ID, transactions.init_producer_id),
            RequestHandler(apis.ADD_PARTITIONS_TO_TXN, transactions.add_partitions),
            RequestHandler(apis.ADD_OFFSETS_TO_TXN, transactions.add_offsets),
            RequestHandler(apis.END_TXN, transactions.end),
            RequestHandler(apis.TXN_OFFSET_COMMIT, offsets.commit),
            RequestHandler(apis.WRITE_TXN_MARKERS, tools.write_markers),
            RequestHandler(apis.DESCRIBE_PRODUCERS, tools.describe_producers),
            RequestHandler(apis.DESCRIBE_TRANSACTIONS, tools.describe),
            RequestHandler(apis.LIST_TRANSACTIONS, tools.list),
            *JointCommitRequests(self.transactions, self._session_valid).handlers(),
        ]

    def _serve_queues(self) -> list[RequestHandler[Any, Any]]:
        leases = SubscriptionRequests(self.subscriptions, self._clock)
        admin = self._subscription_admin
        delays = DelayRequests(self.delayed, self.catalogue)
        return [
            RequestHandler(apis.LEASE, leases.lease),
            RequestHandler(apis.SETTLE, leases.settle),
            RequestHandler(apis.LEASE_OFFSETS, leases.lease_offsets),
            RequestHandler(apis.DESCRIBE_SUBSCRIPTIONS, admin.describe),
            RequestHandler(apis.ALTER_SUBSCRIPTIONS, admin.alter),
            RequestHandler(apis.MESSAGE_STATUS, admin.status),
            RequestHandler(apis.REDRIVE_MESSAGES, RedriveRequests(self.subscriptions, self.catalogue).redrive),
            RequestHandler(apis.LIST_DELAYED, delays.list),
            RequestHandler(apis.ALTER_DELAYED, delays.alter),
            RequestHandler(apis.DESCRIBE_PUSHES, PushRequests(self.subscription_configs).describe),
        ]

    def _session_valid(self) -> bool:
        return self.cluster.membership.session_valid

    def _session_expired(self) -> bool:
        return self.cluster.membership.session_expired

    async def _run_housekeeping(self) -> None:
        offsets_checked = self._clock.monotonic()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            config = self.catalogue.config
            self.catalogue.expire()
            self.dedup.tick()
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
    store = await open_store(disk, folder, clock, _to_store_config(config))
    start = await assign_broker_epoch(registry, disk, clock, folder, node_id, entropy)
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
    if not start.has_latest_data:
        await confirm_broker_epoch(disk, folder, node_id, start)
    broker.start(supervisor)
    return broker


def _to_store_config(config: BrokerConfig) -> StoreConfig:
    return StoreConfig(
        retention_check_seconds=config.log_retention_check_interval_ms / 1000,
        cleaner_enabled=config.log_cleaner_enable,
        cleaner_backoff_seconds=config.log_cleaner_backoff_ms / 1000,
        cleaner_map_bytes=config.log_cleaner_dedupe_buffer_size,
        cleaner_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )
