"""Lookups of a Spark driver before a read: topics by pattern, offset bounds, offsets by time, topic ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.ids import ZERO_ID, id_to_text
from headrace.model.names import compiled
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


class OffsetBounds(NamedTuple):
    """The readable offsets of a partition: [earliest, latest)."""

    earliest: int
    latest: int


def bounds(bootstrap: str, topics: Iterable[str], *, read_committed: bool = True) -> dict[TopicPartition, OffsetBounds]:
    """The bounds of every partition of these topics; with `read_committed`, up to the first open transaction."""

    names = list(topics)

    async def fetch(cluster: Cluster) -> dict[TopicPartition, OffsetBounds]:
        await cluster.call_with_retries(lambda: cluster.refresh(names))  # partitions may have been added
        targets = []
        for name in names:
            count = len((await cluster.topic(name)).partitions)
            targets += [TopicPartition(name, number) for number in range(count)]
        return await find_bounds(cluster, targets, read_committed=read_committed)

    return sync_cluster(bootstrap).call(fetch)


async def find_bounds(
    cluster: Cluster, targets: Sequence[TopicPartition], *, read_committed: bool
) -> dict[TopicPartition, OffsetBounds]:
    ends = await find_offsets(cluster, dict.fromkeys(targets, END), read_committed=read_committed)
    starts = await find_offsets(cluster, dict.fromkeys(targets, START))
    return {
        target: OffsetBounds(starts[target].offset, max(starts[target].offset, ends[target].offset))
        for target in targets
    }


def offsets_at(bootstrap: str, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """The first offset of each partition at or after a time; None if there is none."""
    found = sync_cluster(bootstrap).call(lambda cluster: find_offsets(cluster, times_ms))
    return {target: result.offset if result.offset >= 0 else None for target, result in found.items()}


def topic_id_of(bootstrap: str, target: TopicPartition) -> str | None:
    """The id of a topic, from the partition's leader, whose metadata is never older than the log that it serves.

    None if the topic or partition does not exist; empty if the brokers have no topic ids.
    """
    topic, number = target

    async def fetch(cluster: Cluster) -> str | None:
        view = (await cluster.refresh([topic])).topics.get(topic)
        if view is None or number >= len(view.partitions):
            return None
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        response: MetadataResponse = await cluster.call(request, node_id=view.partitions[number].leader)
        found = [entry for entry in response.topics if entry.name == topic and not entry.error_code]
        if not found:
            return None
        return "" if found[0].topic_id == ZERO_ID else id_to_text(found[0].topic_id)

    return sync_cluster(bootstrap).call(lambda cluster: cluster.call_with_retries(lambda: fetch(cluster)))


def topics_matching(bootstrap: str, pattern: str) -> list[str]:
    """The sorted names of the topics that match a whole RE2 pattern, without internal topics."""
    matcher = compiled(pattern)
    listed = sync_cluster(bootstrap).call(lambda cluster: TopicAdmin(cluster).list())
    return sorted(topic.name for topic in listed if not topic.internal and matcher.fullmatch(topic.name))
