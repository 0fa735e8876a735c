"""Requests of aiokafka's admin client, in versions that no other client uses any more."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from tests.compat.test_aiokafka import consume, group_consumer, run, started, until
from tests.integration.records import create_topic, produce


def test_topics_are_created_grown_described_and_deleted(address: str, name: str) -> None:
    async def test() -> None:
        async with started(AIOKafkaAdminClient(bootstrap_servers=address)) as admin:
            created = await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
            assert [code for _, code, *_ in created.topic_errors] == [0]
            await admin.create_partitions({name: NewPartitions(total_count=3)})
            assert name in await admin.list_topics()
            [described] = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            deleted = await admin.delete_topics([name])
            assert [code for _, code in deleted.topic_error_codes] == [0]

            async def gone() -> bool:
                return name not in await admin.list_topics()

            await until(gone)

    run(test())


def test_the_whole_set_of_overrides_is_replaced_by_alter_configs(address: str, name: str) -> None:
    create_topic(address, name, 1, {"segment.bytes": "1048576"})

    async def test() -> None:
        async with started(AIOKafkaAdminClient(bootstrap_servers=address)) as admin:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "60000"})])

            async def altered() -> bool:
                resource = ConfigResource(ConfigResourceType.TOPIC, name)
                [response] = await admin.describe_configs([resource])
                [(code, _, _, _, entries)] = response.resources
                assert code == 0
                values: dict[str, Any] = {entry[0]: entry[1] for entry in entries}
                return (values["retention.ms"], values["segment.bytes"]) == ("60000", "1073741824")

            await until(altered)

    run(test())


def test_groups_and_their_offsets_are_listed(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one", b"two"])

    async def test() -> None:
        async with (
            started(AIOKafkaAdminClient(bootstrap_servers=address)) as admin,
            started(group_consumer(address, name)) as consumer,
        ):
            await consume(consumer, 2)
            await consumer.commit()
            assert (name, "consumer") in await admin.list_consumer_groups()
            [described] = await admin.describe_consumer_groups([name])
            [(code, group, state, *_)] = described.groups
            assert (code, group, state) == (0, name, "Stable")
            offsets = await admin.list_consumer_group_offsets(name)
            assert offsets[TopicPartition(name, 0)].offset == 2

    run(test())


def test_the_cluster_is_described_and_records_are_deleted(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one", b"two"])

    async def test() -> None:
        async with started(AIOKafkaAdminClient(bootstrap_servers=address)) as admin:
            cluster = await admin.describe_cluster()
            assert len(cluster["brokers"]) == 1
            partition = TopicPartition(name, 0)
            deleted = await admin.delete_records({partition: RecordsToDelete(before_offset=1)})
            assert deleted == {partition: 1}

    run(test())
