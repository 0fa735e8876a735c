"""The mirrored cluster metadata is correct in whatever order the registry's keys arrive."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from headrace.broker.cluster.cluster_metadata import ClusterMetadata
from headrace.broker.topic import Topic
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.registry_records import BrokerRecord, ControllerRecord, PartitionRecord, TopicRecord
from headrace.registry.brokers import CONTROLLER_KEY, drained_key, live_key
from headrace.registry.interface import RegistryEntry
from headrace.registry.topics import encode_partition, partition_key, topic_key

FIRST, SECOND = UUID(int=1), UUID(int=2)
PLACE = PartitionRecord(replicas=(1, 2), isr=(1, 2), leader=1, leader_broker_epoch=1)


class NotifiedClusterMetadata(ClusterMetadata):
    """Records its events: a topic created or changed, a topic deleted, a partition record changed."""

    def __init__(self) -> None:
        super().__init__(BrokerConfig())
        self.news: list[tuple[str, str, int]] = []
        self.node_news = 0
        self.on_topic_change.append(lambda topic: self.news.append(("topic", topic.name, topic.id.int)))
        self.on_topic_deleted.append(lambda topic: self.news.append(("gone", topic.name, topic.id.int)))
        self.on_partition_change.append(lambda topic, index: self.news.append(("place", topic.name, index)))
        self.on_brokers_change.append(self._count)

    def put_topic(
        self, topic_id: UUID = FIRST, partitions: int = 1, name: str = "t", retention_ms: int | None = None
    ) -> None:
        configs = {} if retention_ms is None else {"retention.ms": str(retention_ms)}
        record = TopicRecord(name=name, id=topic_id, partitions=partitions, configs=configs, created_ms=0)
        self.apply(topic_key(name), RegistryEntry(topic_key(name), msgspec.json.encode(record), 0))

    def put_place(
        self, index: int = 0, record: PartitionRecord = PLACE, version: int = 0, topic_id: UUID = FIRST
    ) -> None:
        key = partition_key(topic_id, index)
        self.apply(key, RegistryEntry(key, encode_partition(record), version))

    def remove_place(self, index: int, topic_id: UUID = FIRST) -> None:
        self.apply(partition_key(topic_id, index), None)

    def remove_topic(self, name: str = "t") -> None:
        self.apply(topic_key(name), None)

    def put_node(self, node_id: int) -> None:
        record = BrokerRecord(node_id=node_id, epoch=1, host="h", port=1)
        self.apply(live_key(node_id), RegistryEntry(live_key(node_id), msgspec.json.encode(record), 0))

    def take_events(self) -> list[tuple[str, str, int]]:
        news, self.news = self.news, []
        return news

    def _count(self) -> None:
        self.node_news += 1


def test_partition_records_wait_for_their_topic() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_place(0)
    directory.put_place(1)
    assert (directory.take_events(), len(directory), directory.orphans) == ([], 0, [FIRST])
    directory.put_topic(partitions=2)
    assert directory.take_events() == [("topic", "t", 1), ("place", "t", 0), ("place", "t", 1)]
    assert directory.orphans == []
    assert directory.partition_record("t", 1) == PLACE


def test_a_topic_may_be_read_before_its_partitions() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic(partitions=2)
    with pytest.raises(UnknownTopicOrPartition):
        directory.partition_record("t", 0)
    directory.put_place(0)
    assert directory.take_events() == [("topic", "t", 1), ("place", "t", 0)]


def test_a_reused_name_is_another_topic() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic(FIRST)
    directory.put_place(0)
    first = directory.topic("t")
    directory.put_place(0, topic_id=SECOND)
    directory.take_events()
    directory.put_topic(SECOND)
    assert directory.take_events() == [("gone", "t", 1), ("topic", "t", 2), ("place", "t", 0)]
    assert directory.topic("t") is directory.find_by_id(SECOND) is not first
    assert directory.find_by_id(FIRST) is None
    directory.put_place(0, replace(PLACE, leader=2), 1, FIRST)
    assert directory.take_events() == [], "what becomes of the predecessor's partitions is no news"
    assert directory.partition_record("t", 0) == PLACE


def test_leftover_partitions_of_a_deleted_topic_are_orphans_until_removed() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic(partitions=2)
    directory.put_place(0)
    directory.put_place(1)
    directory.remove_topic()
    assert (directory.orphans, directory.deleted) == ([FIRST], {FIRST})
    directory.remove_place(0)
    assert directory.orphans == [FIRST]
    directory.remove_place(1)
    assert (directory.orphans, directory.deleted) == ([], set())


def test_partitions_removed_before_their_topic_leave_nothing_behind() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic()
    directory.put_place(0)
    directory.remove_place(0)
    with pytest.raises(UnknownTopicOrPartition):
        directory.partition_record("t", 0)
    directory.remove_topic()
    assert (directory.orphans, directory.deleted) == ([], set())


def test_a_response_of_a_lagging_server_does_not_revert_newer_records() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic()
    directory.put_place(0, replace(PLACE, leader_epoch=1), version=5)
    directory.take_events()
    directory.put_place(0, PLACE, version=4)
    assert (directory.take_events(), directory.partition_record("t", 0).leader_epoch) == ([], 1)
    assert directory.topic("t").versions[0] == 5


def test_partitions_beyond_the_partition_count_wait_until_the_topic_grows() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic(partitions=1)
    directory.put_place(0)
    directory.take_events()
    directory.put_place(1)
    directory.put_place(2)
    assert (directory.take_events(), list(directory.topic("t").partition_records)) == ([], [0])
    assert directory.orphans == [], "the controller must not clear away the partitions of a topic"
    directory.put_topic(partitions=2)
    assert directory.take_events() == [("topic", "t", 1), ("place", "t", 1)]
    directory.put_topic(partitions=3)
    assert directory.take_events() == [("topic", "t", 1), ("place", "t", 2)]


def test_partitions_of_an_interrupted_growth_are_replaced_when_created_again() -> None:
    """They may have been changed meanwhile, and their successors begin with version 0."""
    directory = NotifiedClusterMetadata()
    directory.put_topic(partitions=1)
    directory.put_place(1, replace(PLACE, leader_epoch=3), version=7)
    directory.put_place(1, replace(PLACE, leader=2), version=0)
    directory.put_topic(partitions=2)
    assert directory.partition_record("t", 1) == replace(PLACE, leader=2)
    assert directory.topic("t").versions[1] == 0


def test_partitions_of_an_interrupted_growth_are_removed_with_their_topic() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic(partitions=1)
    directory.put_place(0)
    directory.put_place(1)
    directory.remove_topic()
    directory.remove_place(0)
    assert (directory.orphans, directory.deleted) == ([FIRST], {FIRST})
    directory.remove_place(1)
    assert (directory.orphans, directory.deleted) == ([], set())


def test_changed_configs_are_notified_and_partition_records_stay() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic()
    directory.put_place(0)
    version, topic = directory.version, directory.topic("t")
    directory.take_events()
    directory.put_topic(retention_ms=7)
    assert directory.take_events() == [("topic", "t", 1)]
    assert directory.topic("t") is topic
    assert (topic.config.retention_ms, topic.partition_records) == (7, {0: PLACE})
    assert directory.version > version


def test_live_brokers_controller_and_drained_brokers_are_mirrored() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_node(1)
    directory.put_node(2)
    controller = ControllerRecord(node_id=2, epoch=3)
    directory.apply(CONTROLLER_KEY, RegistryEntry(CONTROLLER_KEY, msgspec.json.encode(controller), 0))
    directory.apply(drained_key(1), RegistryEntry(drained_key(1), b"", 0))
    assert (list(directory.nodes), directory.controller, directory.drained) == ([1, 2], controller, {1})
    assert {node.node_id: node.is_draining for node in directory.live_brokers.values()} == {1: True, 2: False}
    assert directory.node_news == 4
    directory.apply(live_key(2), None)
    directory.apply(CONTROLLER_KEY, None)
    directory.apply(drained_key(1), None)
    assert (list(directory.nodes), directory.controller, directory.drained) == ([1], None, set())
    assert directory.node_news == 7


def test_a_leader_is_returned_only_while_it_is_live() -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic()
    directory.put_place(0)
    assert directory.leader_node("t", 0) is None
    directory.put_node(1)
    assert (node := directory.leader_node("t", 0)) is not None
    assert node.node_id == 1
    with pytest.raises(UnknownTopicOrPartition):
        directory.leader_node("t", 1)
    with pytest.raises(UnknownTopicOrPartition):
        directory.leader_node("x", 0)


@pytest.mark.parametrize("change", ["place", "node", "configs"])
def test_a_cached_metadata_response_is_rebuilt_after_a_change(change: str) -> None:
    directory = NotifiedClusterMetadata()
    directory.put_topic()
    directory.put_place(0)
    topic: Topic = directory.topic("t")
    topic.cached_metadata = object()  # type: ignore[assignment]
    if change == "place":
        directory.put_place(0, replace(PLACE, isr=(1,)), 1)
    elif change == "node":
        directory.put_node(2)
    else:
        directory.put_topic(retention_ms=7)
    assert topic.cached_metadata is None
