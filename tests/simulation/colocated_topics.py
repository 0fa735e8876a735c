"""The same stories of a cluster, with companions: they are asked for again and again, of topics that come and go.

When all is well again every companion has an owner, as many partitions as that has, in the same places, led by the same
brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tests.simulation.clients import IMPATIENT, TOPIC, Client
from tests.simulation.cluster_clients import COPIES
from tests.simulation.cluster_scenario import ClusterScenario

from headrace.model.errors import HeadraceError
from headrace.model.names import delayed_topic, owner_of
from headrace.model.registry_records import PartitionRecord
from headrace.registry.interface import is_beneath
from headrace.registry.topics import TOPICS_KEY, TopicRecord, decode_partition, decode_topic, partition_key
from headrace.testkit.cluster import SimCluster
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

_SCRATCHES = 4


class ColocatedTopicRequester(Client):
    """Wants companions, as whoever sends delayed messages does."""

    settings = IMPATIENT

    async def work(self) -> None:
        owners = [TOPIC, COPIES, *(f"scratch{number}" for number in range(_SCRATCHES))]
        while not self.is_done:
            name = delayed_topic(self.random.choice(owners))
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
            with suppress(HeadraceError):
                await self.cluster.call(request)
            await self.think(0.3)


class ColocatedTopicScenario(ClusterScenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clients.append(self.client(ColocatedTopicRequester, "companion-asker"))

    async def _recover(self) -> None:
        await super()._recover()
        await self.until_none(lambda: list(misplaced_topics(self.cluster)))


def misplaced_topics(cluster: SimCluster) -> Iterator[str]:
    """The companions that are not where they should be, or should not be at all."""
    entries = cluster.registry.entries
    topics = [decode_topic(entry) for key, entry in entries.items() if is_beneath(key, TOPICS_KEY)]
    by_name = {topic.name: topic for topic in topics}
    for colocated_topic in topics:
        if colocated_topic.owner is None:
            continue
        owner = by_name.get(owner_of(colocated_topic.name) or "")
        if owner is None or owner.id != colocated_topic.owner:
            yield f"{colocated_topic.name} is left over"
        elif _places(entries, colocated_topic) != _places(entries, owner):
            records = f"{_records(entries, colocated_topic)}, {_records(entries, owner)}"
            yield f"{colocated_topic.name} is not with its owner: {records}"


def _places(entries: Mapping[str, Any], topic: TopicRecord) -> list[tuple[tuple[int, ...], int]]:
    return [(record.replicas, record.leader) for record in _records(entries, topic)]


def _records(entries: Mapping[str, Any], topic: TopicRecord) -> list[PartitionRecord]:
    keys = [partition_key(topic.id, index) for index in range(topic.partitions)]
    return [decode_partition(entries[key]) for key in keys if key in entries]
