"""Administer topics: create, describe, configure, trim and delete them.

Calls are retried while their error is retriable; other errors are raised with the broker's message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.client.admin.config_requests import alter_configs, describe_configs
from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.client.metadata import TopicPartition, TopicView, partitions_by_topic
from headrace.model.errors import InvalidRequest, LeaderNotAvailable
from headrace.wire.messages.replicas import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

HIGH_WATERMARK = -1  # `trim` to this: everything that consumers may read


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


class ReportedConfigSource(IntEnum):
    """Where a setting's value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """One setting as the broker describes it; a sensitive one has no value."""

    name: str
    value: str | None
    source: int
    read_only: bool

    @property
    def is_default(self) -> bool:
        return self.source == ReportedConfigSource.DEFAULT


class TopicAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[TopicView]:
        """Every topic, internal ones too, by name."""
        view = await self._cluster.call_with_retries(self._cluster.refresh)
        return sorted(view.topics.values(), key=lambda topic: topic.name)

    async def describe(self, name: str) -> TopicView:
        """One topic, by fresh metadata."""
        return await self._cluster.call_with_retries(lambda: self._cluster.current_topic(name))

    async def create(self, topic: NewTopic, *, validate_only: bool = False) -> None:
        """Create a topic and wait until each of its partitions has a leader."""
        wanted = CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
        )
        request = CreateTopicsRequest(
            topics=[wanted], timeout_ms=self._cluster.settings.request_timeout_ms, validate_only=validate_only
        )
        await self._call_controller(request, lambda response: response.topics)
        if not validate_only:
            await self._cluster.call_with_retries(lambda: self._ready(topic.name), topics_may_appear=True)

    async def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(
            topic_names=[name],
            topics=[DeleteTopicState(name=name)],
            timeout_ms=self._cluster.settings.request_timeout_ms,
        )
        await self._call_controller(request, lambda response: response.responses)
        self._cluster.invalidate_metadata()

    async def add_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Raise the number of partitions to `total`; keys may map to other partitions than before."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=total)],
            timeout_ms=self._cluster.settings.request_timeout_ms,
            validate_only=validate_only,
        )
        await self._call_controller(request, lambda response: response.results)
        self._cluster.invalidate_metadata()

    async def configs(self, name: str) -> Sequence[Config]:
        """All settings of a topic with their sources, by name."""
        described = await describe_configs(self._cluster, (ResourceType.TOPIC, name))
        configs = [Config(c.name, c.value, c.config_source, c.read_only) for c in described]
        return sorted(configs, key=lambda config: config.name)

    async def alter_configs(
        self,
        name: str,
        *,
        set_to: Mapping[str, str] | None = None,
        back_to_default: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        changes = {**(set_to or {}), **dict.fromkeys(back_to_default)}
        both = sorted(name for name in set_to or {} if changes[name] is None)
        if both:
            raise InvalidRequest(f"cannot both set and reset {', '.join(both)}; choose one of them")
        await alter_configs(self._cluster, (ResourceType.TOPIC, name), changes, validate_only=validate_only)

    async def trim(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records before these offsets (HIGH_WATERMARK: all); returns the new log start offsets."""
        started: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            by_leader = await self._cluster.partitions_by_leader(target for target in before if target not in started)
            for node_id, targets in by_leader.items():
                started.update(await self._trim_at(node_id, {target: before[target] for target in targets}))

        await self._cluster.call_with_retries(attempt)
        return started

    async def sizes(self, name: str) -> dict[int, int]:
        """The bytes of each partition on its leader's disk."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in (await self._cluster.topic(name)).partitions:
            if partition.leader_id >= 0:
                by_leader[partition.leader_id].append(TopicPartition(name, partition.partition))
        sizes: dict[int, int] = {}
        for node_id, targets in by_leader.items():
            sizes |= {t.partition: size for t, size in (await partition_sizes(self._cluster, node_id, targets)).items()}
        return sizes

    async def _call_controller(self, request: Any, results: Callable[[Any], Iterable[Any]]) -> None:
        """Send a request to the controller, with retries; raises the first error of its results."""

        async def attempt() -> None:
            for result in results(await self._cluster.call_controller(request)):
                raise_for_code(result.error_code, result.error_message)

        await self._cluster.call_with_retries(attempt)

    async def _ready(self, name: str) -> None:
        topic = await self._cluster.topic(name)
        if not topic.ready:
            raise LeaderNotAvailable(f"topic {name!r} was created, but not all its partitions have a leader yet")

    async def _trim_at(self, node_id: int, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        topics: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
        for (topic, partition), offset in before.items():
            topics[topic].append(DeleteRecordsPartition(partition_index=partition, offset=offset))
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=p) for name, p in topics.items()],
            timeout_ms=self._cluster.settings.request_timeout_ms,
        )
        response: DeleteRecordsResponse = await self._cluster.call(request, node_id=node_id)
        started = {}
        for result in response.topics:
            for partition_ in result.partitions:
                raise_for_code(partition_.error_code)
                started[TopicPartition(result.name, partition_.partition_index)] = partition_.low_watermark
        return started


async def partition_sizes(
    cluster: Cluster, node_id: int, targets: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """The bytes of these partitions on a broker's disk, without those that it has no replica of. One attempt."""
    topics = [DescribableLogDirTopic(name, indexes) for name, indexes in partitions_by_topic(targets).items()]
    response: DescribeLogDirsResponse = await cluster.call(DescribeLogDirsRequest(topics=topics), node_id=node_id)
    raise_for_code(response.error_code)
    return {
        TopicPartition(topic.name, result.partition_index): result.partition_size
        for folder in response.results
        for topic in folder.topics
        for result in topic.partitions
    }
