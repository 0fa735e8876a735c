"""Requests of kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka.errors import (
    GroupSubscribedToTopicError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.integration.process import wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce


@pytest.fixture
def admin(address: str) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as client:
        yield client


def configs(admin: Any, topic: str) -> dict[str, dict[str, Any]]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    described: dict[str, dict[str, Any]] = admin.describe_configs([resource], config_filter="all")["topic"][topic]
    return described


def test_topics_are_created_described_and_deleted(admin: Any, name: str) -> None:
    admin.create_topics([NewTopic(name, 3, 1, topic_configs={"retention.ms": "3600000"})])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, 3, 1)])
    assert name in admin.list_topics()
    [described] = admin.describe_topics([name])
    assert len(described["partitions"]) == 3
    paged = admin.describe_topic_partitions([name], response_partition_limit=2)
    assert [partition["partition_index"] for partition in paged["topics"][0]["partitions"]] == [0, 1]
    assert paged["next_cursor"]["partition_index"] == 2
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics(), "the topic is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_partitions_are_added(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    admin.create_partitions({name: NewPartitions(3)})
    assert len(admin.describe_topics([name])[0]["partitions"]) == 3


def test_configs_are_described_altered_and_reset(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "60000"})])
    wait_until(lambda: configs(admin, name)["retention.ms"]["value"] == "60000", "the new value is seen")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, name, ["retention.ms"])])
    wait_until(lambda: configs(admin, name)["retention.ms"]["value"] != "60000", "the default is back")
    refused = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "soon"})])
    assert "InvalidConfigurationError" in str(refused["topic"][name])


def test_the_cluster_names_itself_and_its_one_broker(admin: Any, address: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    [broker] = cluster["brokers"]
    assert f"{broker['host']}:{broker['port']}" == address


def test_log_folders_report_the_size_of_each_partition(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"x" * 1000])
    [broker] = admin.describe_log_dirs()
    topics = [topic for folder in broker["log_dirs"] for topic in folder["topics"]]
    [found] = [topic for topic in topics if topic["name"] == name]
    assert found["partitions"][0]["partition_size"] > 1000


def test_groups_are_listed_described_emptied_and_deleted(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one"])
    with consumer_of(address, name, **{"group.instance.id": "static"}) as consumer:
        consumer.subscribe([name])
        consume(consumer, 1)
        assert name in [group["group_id"] for group in admin.list_groups()]
        described = admin.describe_groups([name])[name]
        assert described["group_state"] == "Stable"
        assert described["members"][0]["group_instance_id"] == "static"
        assert "NonEmptyGroupError" in str(admin.delete_groups([name])[name])
    removed = admin.remove_group_members(name, [MemberToRemove(group_instance_id="static")])
    assert list(removed.values()) == [NoError]
    assert admin.describe_groups([name])[name]["group_state"] == "Empty"
    assert "OK" in str(admin.delete_groups([name])[name])


def test_group_offsets_are_altered_listed_reset_and_deleted(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 2)
    produce(address, name, [b"%d" % number for number in range(10)], partition=0)
    partition = TopicPartition(name, 0)
    assert admin.alter_group_offsets(name, {partition: OffsetAndMetadata(6, "six", -1)}) == {partition: NoError}
    listed = admin.list_group_offsets([name])[name]
    assert (listed[partition].offset, listed[partition].metadata) == (6, "six")
    admin.reset_group_offsets(name, {partition: OffsetSpec.EARLIEST})
    assert admin.list_group_offsets([name])[name][partition].offset == 0
    assert admin.delete_group_offsets(name, [partition]) == {partition: NoError}
    assert partition not in admin.list_group_offsets([name])[name]


def test_offsets_of_a_subscribed_topic_are_not_deleted(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one"])
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        consume(consumer, 1)
        consumer.commit(asynchronous=False)
        deleted = admin.delete_group_offsets(name, [TopicPartition(name, 0)])
        assert list(deleted.values()) == [GroupSubscribedToTopicError]


def test_offsets_are_listed_and_records_deleted(admin: Any, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(10)])
    partition = TopicPartition(name, 0)
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 4
    assert admin.list_partition_offsets({partition: OffsetSpec.LATEST})[partition].offset == 10
    assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 10
