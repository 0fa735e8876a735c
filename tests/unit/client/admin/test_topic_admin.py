"""Topics are created, changed, trimmed and deleted, and errors say why."""

from __future__ import annotations

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.topic_admin import HIGH_WATERMARK, NewTopic, TopicAdmin
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import World


def test_a_created_topic_can_be_described_and_deleted() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 3, configs={"retention.ms": "1000"}))
            view = await admin.describe("orders")
            assert (len(view.partitions), view.ready, view.internal) == (3, True, False)
            assert [topic.name for topic in await admin.list()] == ["orders"]
            chosen = {config.name: config.value for config in await admin.configs("orders") if not config.is_default}
            assert chosen == {"retention.ms": "1000"}
            await admin.delete("orders")
            with pytest.raises(UnknownTopicOrPartition):
                await admin.describe("orders")

    in_world(scenario)


def test_errors_are_typed() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 3))
            errors: list[tuple[type[HeadraceError], NewTopic]] = [
                (TopicAlreadyExists, NewTopic("orders")),
                (InvalidTopic, NewTopic("not a name")),
                (InvalidPartitions, NewTopic("new", 0)),
                (InvalidConfig, NewTopic("new", configs={"retention.ms": "soon"})),
            ]
            for kind, topic in errors:
                with pytest.raises(kind):
                    await admin.create(topic)
            with pytest.raises(InvalidPartitions):
                await admin.add_partitions("orders", 2)
            with pytest.raises(UnknownTopicOrPartition):
                await admin.delete("nope")

    in_world(scenario)


def test_a_trial_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 1))
            await admin.create(NewTopic("new"), validate_only=True)
            await admin.add_partitions("orders", 5, validate_only=True)
            await admin.alter_configs("orders", set_to={"retention.ms": "5"}, validate_only=True)
            assert [(topic.name, len(topic.partitions)) for topic in await admin.list()] == [("orders", 1)]
            assert all(config.is_default for config in await admin.configs("orders"))

    in_world(scenario)


def test_settings_are_changed_one_by_one_and_reset_to_their_default() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 1, configs={"retention.ms": "1000"}))
            await admin.alter_configs("orders", set_to={"max.message.bytes": "5000"}, back_to_default=["retention.ms"])
            chosen = {config.name: config.value for config in await admin.configs("orders") if not config.is_default}
            assert chosen == {"max.message.bytes": "5000"}

    in_world(scenario)


def test_a_setting_cannot_be_changed_and_reset_at_once() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
            with pytest.raises(InvalidRequest, match=r"retention\.ms"):
                await admin.alter_configs("orders", set_to={"retention.ms": "5"}, back_to_default=["retention.ms"])
            chosen = {config.name: config.value for config in await admin.configs("orders") if not config.is_default}
            assert chosen == {"retention.ms": "1000"}

    in_world(scenario)


def test_trimming_returns_the_new_log_start() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 2))
            async with Producer(cluster) as producer:
                for number in range(20):
                    await producer.publish("orders", b"x", partition=number % 2)
            first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
            assert await admin.trim({first: 4, second: HIGH_WATERMARK}) == {first: 4, second: 10}
            starts = await find_offsets(cluster, {first: START, second: START})
            ends = await find_offsets(cluster, {first: END, second: END})
            assert [starts[first].offset, starts[second].offset, ends[first].offset] == [4, 10, 10]
            assert set(await admin.sizes("orders")) == {0, 1}

    in_world(scenario)
