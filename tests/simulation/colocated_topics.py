"""The cluster simulation with co-located topics, which clients request again and again while their owners come and go.

After recovery, every co-located topic has an owner, and the same number of partitions, the same replicas and the same
leaders as its owner.
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
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.interface import is_beneath
from headrace.registry.topics import TOPICS_KEY, decode_partition, decode_topic, partition_key
from headrace.testkit.cluster import SimCluster
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

_SCRATCHES = 4


class ColocatedTopicRequester(Client):
    """Requests metadata of co-located topics, which creates them, as producers of delayed messages do."""

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
        self.clients.append(self.create_client(ColocatedTopicRequester, "companion-asker"))

    async def _recover(self) -> None:
        await super()._recover()
        await self.until_none(lambda: list(misplaced_topics(self.cluster)))


def misplaced_topics(cluster: SimCluster) -> Iterator[str]:
    """Describe the co-located topics without an owner, and those with other replicas or leaders than their owner."""
    entries = cluster.registry.entries
    topics = [decode_topic(entry) for key, entry in entries.items() if is_beneath(key, TOPICS_KEY)]
    by_name = {topic.name: topic for topic in topics}
    for colocated_topic in topics:
        if colocated_topic.owner is None:
            continue
        owner = by_name.get(owner_of(colocated_topic.name) or "")
        if owner is None or owner.id != colocated_topic.owner:
            yield f"{colocated_topic.name} has no owner"
        elif _places(entries, colocated_topic) != _places(entries, owner):
            records = f"{_records(entries, colocated_topic)}, {_records(entries, owner)}"
            yield f"{colocated_topic.name} is not co-located with its owner: {records}"


def _places(entries: Mapping[str, Any], topic: TopicRecord) -> list[tuple[tuple[int, ...], int]]:
    return [(record.replicas, record.leader) for record in _records(entries, topic)]


def _records(entries: Mapping[str, Any], topic: TopicRecord) -> list[PartitionRecord]:
    keys = [partition_key(topic.id, index) for index in range(topic.partitions)]
    return [decode_partition(entries[key]) for key in keys if key in entries]
