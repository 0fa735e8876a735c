"""Requests of confluent-kafka's admin client."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce


@pytest.fixture
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def result(futures: Mapping[Any, Any], key: Any) -> Any:
    return futures[key].result(PATIENCE_SECONDS)


def error_code_of(futures: Mapping[Any, Any], key: Any) -> int:
    """Return the error code of a failed call."""
    with pytest.raises(KafkaException) as raised:
        result(futures, key)
    error: KafkaError = raised.value.args[0]
    return error.code()


def only(futures: Mapping[Any, Any]) -> Any:
    [future] = futures.values()
    return future.result(PATIENCE_SECONDS)


def test_a_topic_is_created_described_and_deleted(admin: AdminClient, name: str) -> None:
    result(admin.create_topics([NewTopic(name, 7, 1)]), name)
    assert len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 7
    described = result(admin.describe_topics(TopicCollection([name])), name)
    assert [partition.id for partition in described.partitions] == list(range(7))
    assert all(partition.leader is not None and len(partition.isr) == 1 for partition in described.partitions)
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    result(admin.delete_topics([name]), name)
    wait_until(lambda: name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics, "the topic is gone")


def test_wrong_topics_are_rejected_with_kafkas_codes(admin: AdminClient, name: str) -> None:
    result(admin.create_topics([NewTopic(name, 1, 1)]), name)
    assert error_code_of(admin.create_topics([NewTopic(name, 1, 1)]), name) == KafkaError.TOPIC_ALREADY_EXISTS
    bad = "no spaces, please"
    assert error_code_of(admin.create_topics([NewTopic(bad, 1, 1)]), bad) == KafkaError.TOPIC_EXCEPTION
    many = name + "-replicas"
    assert error_code_of(admin.create_topics([NewTopic(many, 1, 3)]), many) == KafkaError.INVALID_REPLICATION_FACTOR
    zero = name + "-zero"
    assert error_code_of(admin.create_topics([NewTopic(zero, 0, 1)]), zero) == KafkaError.INVALID_PARTITIONS
    odd = NewTopic(name + "-odd", 1, 1, config={"no.such.config": "1"})
    assert error_code_of(admin.create_topics([odd]), odd.topic) == KafkaError.INVALID_CONFIG
    unfit = NewTopic(name + "-unfit", 1, 1, config={"retention.ms": "soon"})
    assert error_code_of(admin.create_topics([unfit]), unfit.topic) == KafkaError.INVALID_CONFIG
    assert error_code_of(admin.delete_topics([name + "-none"]), name + "-none") == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_dry_run_creates_nothing(admin: AdminClient, name: str) -> None:
    result(admin.create_topics([NewTopic(name, 1, 1)], validate_only=True), name)
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_topic_created_without_numbers_gets_the_brokers_defaults(admin: AdminClient, name: str) -> None:
    result(admin.create_topics([NewTopic(name, -1, -1)]), name)
    assert len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 4


def test_a_deleted_topic_created_again_is_empty(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"old"])
    result(admin.delete_topics([name]), name)
    wait_until(lambda: name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics, "the topic is gone")
    create_topic(address, name, 1)
    produce(address, name, [b"new"])
    with consumer_of(address, name) as consumer:
        consumer.assign([TopicPartition(name, 0, 0)])
        assert consume(consumer, 1)[0].value() == b"new"


def test_partitions_are_added_but_never_removed(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 2)
    result(admin.create_partitions([NewPartitions(name, 5)]), name)
    assert len(admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions) == 5
    assert error_code_of(admin.create_partitions([NewPartitions(name, 3)]), name) == KafkaError.INVALID_PARTITIONS
    produce(address, name, [b"x"], partition=4)


def test_every_config_of_a_topic_is_described_with_its_source(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 1, {"retention.ms": "3600000", "cleanup.policy": "compact"})
    entries = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert entries["retention.ms"].value == "3600000"
    assert entries["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["cleanup.policy"].value == "compact"
    assert entries["segment.bytes"].value == "1073741824"
    assert entries["segment.bytes"].is_default
    assert entries["max.message.bytes"].value == "1048588"
    assert {
        "min.insync.replicas",
        "compression.type",
        "message.timestamp.type",
        "flush.messages",
    } <= entries.keys()


def test_configs_are_altered_one_by_one(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 1, {"retention.ms": "3600000"})

    def alter(config: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(config, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        only(admin.incremental_alter_configs([resource]))

    def value(config: str) -> str:
        return str(only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))[config].value)

    alter("segment.bytes", "1048576", AlterConfigOpType.SET)
    wait_until(lambda: value("segment.bytes") == "1048576", "the new value is seen")
    assert value("retention.ms") == "3600000"
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    wait_until(lambda: set(value("cleanup.policy").split(",")) == {"delete", "compact"}, "the list has grown")
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    wait_until(lambda: value("cleanup.policy") == "compact", "the list has shrunk")
    alter("segment.bytes", None, AlterConfigOpType.DELETE)
    wait_until(lambda: value("segment.bytes") == "1073741824", "the default is back")
    with pytest.raises(KafkaException) as raised:
        alter("segment.bytes", "many", AlterConfigOpType.SET)
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_the_brokers_own_configs_are_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_SECONDS)
    assert cluster.cluster_id
    [node] = cluster.nodes
    assert cluster.controller.id == node.id
    entries = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node.id))]))
    assert entries["num.partitions"].value == "4"
    assert "message.max.bytes" in entries


def alter_broker(admin: AdminClient, config: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(config, value, incremental_operation=operation)
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]))


@pytest.mark.parametrize("config", ["leader.replication.throttled.rate", "follower.replication.throttled.rate"])
def test_the_rate_of_a_reassignment_can_be_set_and_reset(admin: AdminClient, config: str) -> None:
    def described() -> tuple[str | None, bool]:
        entry = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")])).get(config)
        return (None, False) if entry is None or entry.is_default else (entry.value, entry.is_read_only)

    alter_broker(admin, config, "1000000")
    wait_until(lambda: described() == ("1000000", False), "the rate is seen")
    alter_broker(admin, config, None)
    wait_until(lambda: described() == (None, False), "the rate is gone")


def test_a_limit_of_connections_holds_as_soon_as_it_is_set(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        alter_broker(admin, "max.connections.per.ip", "1")
        host, _, port = broker.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as rejected_connections:
            assert rejected_connections.recv(1) == b""
        alter_broker(admin, "max.connections.per.ip", None)
        assert AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=PATIENCE_SECONDS).brokers
    finally:
        broker.stop()


def test_groups_are_listed_described_and_deleted(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 2)
    produce(address, name, [b"one", b"two"])
    with consumer_of(address, name, **{"client.id": "describes itself"}) as consumer:
        consumer.subscribe([name])
        consume(consumer, 2)
        listed = admin.list_consumer_groups().result(PATIENCE_SECONDS)
        assert name in [group.group_id for group in listed.valid]
        description = result(admin.describe_consumer_groups([name]), name)
        assert description.state == ConsumerGroupState.STABLE
        [member] = description.members
        assert member.client_id == "describes itself"
        assert {partition.partition for partition in member.assignment.topic_partitions} == {0, 1}
        assert error_code_of(admin.delete_consumer_groups([name]), name) == KafkaError.NON_EMPTY_GROUP
    description = result(admin.describe_consumer_groups([name]), name)
    assert description.state == ConsumerGroupState.EMPTY
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(PATIENCE_SECONDS)
    assert name not in [group.group_id for group in stable.valid]
    result(admin.delete_consumer_groups([name]), name)
    assert error_code_of(admin.delete_consumer_groups([name]), name) == KafkaError.GROUP_ID_NOT_FOUND


def test_group_offsets_are_altered_and_listed(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 2)
    produce(address, name, [b"%d" % number for number in range(10)], partition=0)
    wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 6), TopicPartition(name, 1, 0)])
    result(admin.alter_consumer_group_offsets([wanted]), name)
    listed = result(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]), name)
    assert {(one.partition, one.offset) for one in listed.topic_partitions} == {(0, 6), (1, 0)}
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        assert consume(consumer, 1)[0].value() == b"6"


def test_offsets_are_listed_by_every_kind(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(10)])
    partition = TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> int:
        return int(only(admin.list_offsets({partition: spec})).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert 0 <= offset(OffsetSpec.max_timestamp()) < 10
    assert offset(OffsetSpec.for_timestamp(1)) == 0
    assert offset(OffsetSpec.for_timestamp(10**14)) == -1


def test_deleted_records_are_gone_for_readers(admin: AdminClient, address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(10)])
    deleted = only(admin.delete_records([TopicPartition(name, 0, 4)]))
    assert deleted.low_watermark == 4
    with consumer_of(address, name) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=PATIENCE_SECONDS) == (4, 10)
        consumer.assign([TopicPartition(name, 0, 0)])
        assert consume(consumer, 1)[0].value() == b"4"
    with pytest.raises(KafkaException) as raised:
        only(admin.delete_records([TopicPartition(name, 0, 11)]))
    assert raised.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
