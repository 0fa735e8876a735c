"""Questions that a driver asks before it reads: which topics, from where to where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.columns.link import sync_cluster
from headrace.model.ids import ZERO_ID, id_to_text
from headrace.model.names import compiled
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


class OffsetBounds(NamedTuple):
    """What can be read of a partition: from `earliest` to before `latest`."""

    earliest: int
    latest: int


def bounds(bootstrap: str, topics: Iterable[str], *, read_committed: bool = True) -> dict[TopicPartition, OffsetBounds]:
    """Of every partition of these topics; with `read_committed`, up to the first transaction that is open."""

    names = list(topics)

    async def ask(cluster: Cluster) -> dict[TopicPartition, OffsetBounds]:
        await cluster.call_with_retries(lambda: cluster.refresh(names))  # there may be more partitions than were known
        targets = []
        for name in names:
            count = len((await cluster.topic(name)).partitions)
            targets += [TopicPartition(name, number) for number in range(count)]
        return await find_bounds(cluster, targets, read_committed=read_committed)

    return sync_cluster(bootstrap).call(ask)


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
    """The first offset of each partition at or after its time; None where there is none yet."""

    async def ask(cluster: Cluster) -> dict[TopicPartition, int | None]:
        found = await find_offsets(cluster, times_ms)
        return {target: there.offset if there.offset >= 0 else None for target, there in found.items()}

    return sync_cluster(bootstrap).call(ask)


def topic_id_of(bootstrap: str, target: TopicPartition) -> str | None:
    """The id of the topic as the leader of this partition knows it, whose metadata is never behind the log it serves.
    None if there is no such topic or partition, empty if the brokers give topics no ids."""
    topic, number = target

    async def ask(cluster: Cluster) -> str | None:
        view = (await cluster.refresh([topic])).topics.get(topic)
        if view is None or number >= len(view.partitions):
            return None
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer: MetadataResponse = await cluster.call(request, node_id=view.partitions[number].leader)
        found = [told for told in answer.topics if told.name == topic and not told.error_code]
        if not found:
            return None
        return "" if found[0].topic_id == ZERO_ID else id_to_text(found[0].topic_id)

    return sync_cluster(bootstrap).call(lambda cluster: cluster.call_with_retries(lambda: ask(cluster)))


def topics_matching(bootstrap: str, pattern: str) -> list[str]:
    """The names that match as a whole, sorted, without internal topics; the syntax is RE2's."""
    matcher = compiled(pattern)

    async def ask(cluster: Cluster) -> list[str]:
        return [topic.name for topic in await TopicAdmin(cluster).list() if not topic.internal]

    return sorted(name for name in sync_cluster(bootstrap).call(ask) if matcher.fullmatch(name))
