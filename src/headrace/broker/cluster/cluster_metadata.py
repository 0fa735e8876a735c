"""This broker's view of the registry: topics, partition records and live brokers.

A mirror updates it key by key; updates never await. Partition records may arrive before their topic, or before its
partition count has grown; they are held back, because partitions exist only by the key of their topic. A topic that is
recreated under the same name is a different topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from msgspec.structs import replace

from headrace.broker.topic import Topic
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import InvalidConfig, UnknownTopicOrPartition
from headrace.model.registry_records import BrokerRecord, ControllerRecord, PartitionRecord
from headrace.model.topic_configs import TopicConfig
from headrace.registry.brokers import BROKERS_KEY, CONTROLLER_KEY, DRAINED_KEY, LIVE_KEY
from headrace.registry.configs import (
    BROKER_CONFIGS_KEY,
    CONFIGS_KEY,
    GROUP_CONFIGS_KEY,
    SUBSCRIPTION_CONFIGS_KEY,
    decode_configs,
)
from headrace.registry.interface import RegistryEntry, decode_json, is_beneath
from headrace.registry.topics import PARTITIONS_KEY, TOPICS_KEY, decode_partition, decode_topic, parse_partition_key

log = logging.getLogger(__name__)

MIRRORED_KEYS = (CONFIGS_KEY, BROKERS_KEY, LIVE_KEY, CONTROLLER_KEY, DRAINED_KEY, PARTITIONS_KEY, TOPICS_KEY)
"""Partitions before topics, so that the partitions of a visible topic are always present."""


class ClusterMetadata:
    """`version` changes with every change of topics, partition counts or configs."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.version = 0
        self.nodes: dict[int, BrokerRecord] = {}
        self.drained: set[int] = set()
        self.controller: ControllerRecord | None = None
        self.on_config_change: list[Callable[[BrokerConfig], None]] = []
        """Called when the configuration of this broker has changed."""
        self.on_topic_change: list[Callable[[Topic], None]] = []
        """Called when a topic was created, or its record has changed."""
        self.on_topic_deleted: list[Callable[[Topic], None]] = []
        self.on_partition_change: list[Callable[[Topic, int], None]] = []
        """Called when the record of a partition has changed."""
        self.on_brokers_change: list[Callable[[], None]] = []
        """Called when live brokers or the controller have changed."""
        self.on_group_config: list[Callable[[str, RegistryEntry | None], None]] = []
        """Called when the configs of a group have changed."""
        self.on_subscription_config: list[Callable[[str, RegistryEntry | None], None]] = []
        """Called when the configuration of a subscription has changed."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._partitions_without_topic: dict[UUID, dict[int, tuple[PartitionRecord, int]]] = {}
        self.deleted: set[UUID] = set()
        """Topics whose deletion was seen; left-over partition records of them may be removed."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    # Lookup

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def topic(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        return topic

    def partition_record(self, topic: str, index: int) -> PartitionRecord:
        record = self.topic(topic).partition_records.get(index)
        if record is None:
            raise UnknownTopicOrPartition(f"partition {topic}-{index} does not exist")
        return record

    def leader_node(self, topic: str, index: int) -> BrokerRecord | None:
        """Return the leader of a partition if it has one that is alive."""
        return self.nodes.get(self.partition_record(topic, index).leader)

    @property
    def live_brokers(self) -> dict[int, BrokerRecord]:
        """Return the live brokers; brokers that an operator drains are marked as draining."""
        return {
            node_id: replace(node, is_draining=True) if node_id in self.drained else node
            for node_id, node in self.nodes.items()
        }

    @property
    def orphans(self) -> list[UUID]:
        """Return topic ids with partitions but without a topic: in creation, or partially created or deleted."""
        return [topic_id for topic_id in self._partitions_without_topic if topic_id not in self._by_id]

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply a changed broker configuration, which contains the defaults of topics."""
        self.config = config
        for notify in self.on_config_change:
            notify(config)
        for topic in self._by_name.values():
            topic.config = TopicConfig.build(topic.record.configs, config.topic_defaults)
            self._notify_topic_change(topic)
        self.version += 1

    # Updates by the mirror

    def apply(self, key: str, entry: RegistryEntry | None) -> None:
        if is_beneath(key, PARTITIONS_KEY):
            self._apply_partition(key, entry)
        elif is_beneath(key, TOPICS_KEY):
            self._apply_topic(key, entry)
        elif is_beneath(key, LIVE_KEY):
            node_id = _node_id_of(key)
            if entry is None:
                self.nodes.pop(node_id, None)
            else:
                self.nodes[node_id] = decode_json(entry, BrokerRecord)
            self._nodes_changed()
        elif is_beneath(key, DRAINED_KEY):
            if entry is None:
                self.drained.discard(_node_id_of(key))
            else:
                self.drained.add(_node_id_of(key))
            self._nodes_changed()
        elif key == CONTROLLER_KEY:
            self.controller = None if entry is None else decode_json(entry, ControllerRecord)
            self._nodes_changed()
        elif key == BROKER_CONFIGS_KEY:
            self._apply_configs(decode_configs(entry))
        elif is_beneath(key, GROUP_CONFIGS_KEY):
            for notify in self.on_group_config:
                notify(key, entry)
        elif is_beneath(key, SUBSCRIPTION_CONFIGS_KEY):
            for notify in self.on_subscription_config:
                notify(key, entry)

    def _apply_configs(self, dynamic: dict[str, str]) -> None:
        """Apply dynamic configs, which may have been changed on another broker."""
        if dynamic == self.config.dynamic:
            return
        try:
            self.reconfigure(BrokerConfig.from_settings(self.config.static, dynamic))
        except InvalidConfig as error:
            log.error("dynamic broker configs conflict with the settings of this broker error=%s", error)

    def _apply_topic(self, key: str, entry: RegistryEntry | None) -> None:
        name = key[len(TOPICS_KEY) + 1 :]
        record = None if entry is None else decode_topic(entry)
        known = self._by_name.get(name)
        if known is not None and (record is None or record.id != known.id):
            self._forget(known)
            known = None
        if record is None:
            return
        config = TopicConfig.build(record.configs, self.config.topic_defaults)
        if known is None:
            known = self._by_name[name] = self._by_id[record.id] = Topic(record, config)
        else:
            known.record, known.config = record, config
            known.cached_metadata = None
        self.version += 1
        self._notify_topic_change(known)
        self._attach_partitions(known)

    def _attach_partitions(self, topic: Topic) -> None:
        """Add the held back partitions of the topic, except those above its partition count."""
        for index, (record, version) in self._partitions_without_topic.pop(topic.id, {}).items():
            if index < topic.partition_count:
                self._apply_partition_record(topic, index, record, version)
            else:
                self._partitions_without_topic.setdefault(topic.id, {})[index] = record, version

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name], self._by_id[topic.id]
        self.version += 1
        left = {index: (topic.partition_records[index], topic.versions[index]) for index in topic.partition_records}
        if left:
            self._partitions_without_topic.setdefault(topic.id, {}).update(left)
            self.deleted.add(topic.id)
        for notify in self.on_topic_deleted:
            notify(topic)

    def _apply_partition(self, key: str, entry: RegistryEntry | None) -> None:
        topic_id, index = parse_partition_key(key)
        topic = self._by_id.get(topic_id)
        is_claimed = topic is not None and index < topic.partition_count
        if entry is not None:
            record = decode_partition(entry)
            if topic is not None and is_claimed:
                self._apply_partition_record(topic, index, record, entry.version)
            else:
                self._partitions_without_topic.setdefault(topic_id, {})[index] = record, entry.version
        elif topic is not None and is_claimed:
            topic.partition_records.pop(index, None)
            topic.versions.pop(index, None)
        elif topic_id in self._partitions_without_topic:
            self._partitions_without_topic[topic_id].pop(index, None)
            if not self._partitions_without_topic[topic_id]:
                del self._partitions_without_topic[topic_id]
                self.deleted.discard(topic_id)

    def _apply_partition_record(self, topic: Topic, index: int, record: PartitionRecord, version: int) -> None:
        if version < topic.versions.get(index, version):
            return  # read from a lagging server: a newer record is already known and applied
        topic.partition_records[index] = record
        topic.versions[index] = version
        topic.cached_metadata = None
        for notify in self.on_partition_change:
            notify(topic, index)

    def _notify_topic_change(self, topic: Topic) -> None:
        for notify in self.on_topic_change:
            notify(topic)

    def _nodes_changed(self) -> None:
        for topic in self:
            topic.cached_metadata = None
        for notify in self.on_brokers_change:
            notify()


def _node_id_of(key: str) -> int:
    return int(key.rpartition("/")[2])
