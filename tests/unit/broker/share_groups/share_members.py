"""Simulated members of share groups: heartbeats to the coordinator; fetches and acknowledgements to leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.unit.broker.broker_requests import offsets_and_values
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker

from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareForgottenTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)

GROUP = "workers"
TOPIC = "jobs"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

Acks = Mapping[int, Sequence[tuple[int, int, int | list[int]]]]
"""By partition: first offset, last offset, and one type for all or one for each."""


class AcquiredRecord(NamedTuple):
    """One acquired message."""

    partition: int
    offset: int
    value: bytes
    delivery: int


class ShareMember:
    """A member with one session. `visit` is its connection for fetches."""

    def __init__(
        self, simulated_broker: SimulatedBroker, member_id: str = "m1", *topics: str, group: str = GROUP
    ) -> None:
        self.simulated_broker = simulated_broker
        self.id = member_id
        self.group = group
        self.topics = list(topics or (TOPIC,))
        self.connection = FakeConnection()
        self.member_epoch = 0
        self.session_epoch = 0
        self.reads: dict[str, list[int]] = {}

    # Coordinator

    async def beat(self, simulated_broker: SimulatedBroker | None = None, **changes: Any) -> Any:
        fields: dict[str, Any] = {"member_epoch": self.member_epoch}
        if self.member_epoch == 0:
            fields["subscribed_topic_names"] = self.topics
        request = ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.id, **{**fields, **changes})
        response = await (simulated_broker or self.simulated_broker).send(request, 1)
        if response.error_code == 0:
            self.member_epoch = response.member_epoch
            if response.assignment is not None:
                self.reads = {
                    self._name(topic.topic_id): topic.partitions for topic in response.assignment.topic_partitions
                }
        return response

    async def leave(self) -> int:
        response = await self.beat(member_epoch=-1)
        self.member_epoch = 0
        return int(response.error_code)

    def _name(self, topic_id: Any) -> str:
        topic = self.simulated_broker.broker.catalogue.find_by_id(topic_id)
        return topic_id.hex if topic is None else topic.name

    # Leaders

    def fetch_request(
        self,
        *partitions: int,
        acks: Acks | None = None,
        epoch: int | None = None,
        wait_ms: int = 0,
        count: int = 100,
        forgotten: Iterable[int] = (),
        topic: str = TOPIC,
        **options: Any,
    ) -> ShareFetchRequest:
        topic_id = self.simulated_broker.broker.catalogue.topic(topic).id
        acks = acks or {}
        named = [
            ShareFetchPartition(partition_index=index, acknowledgement_batches=_batches(acks.get(index, ())))
            for index in dict.fromkeys((*partitions, *acks))
        ]
        gone = [*forgotten]
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.session_epoch if epoch is None else epoch,
            **{"max_wait_ms": wait_ms, "min_bytes": 1, "max_records": count, "batch_size": count, **options},
            topics=[ShareFetchTopic(topic_id=topic_id, partitions=named)] if named else [],
            forgotten_topics_data=[ShareForgottenTopic(topic_id=topic_id, partitions=gone)] if gone else [],
        )

    def begin_fetch(self, *partitions: int, version: int = 2, **options: Any) -> asyncio.Task[ShareFetchResponse]:
        request = self.fetch_request(*partitions, **options)
        self._count(request.share_session_epoch)
        return self.simulated_broker.begin_send(request, version, self.connection)

    async def fetch(self, *partitions: int, version: int = 2, **options: Any) -> ShareFetchResponse:
        return await asyncio.shield(self.begin_fetch(*partitions, version=version, **options))

    async def take(self, *partitions: int, **options: Any) -> list[AcquiredRecord]:
        return taken(await self.fetch(*partitions, **options))

    async def acknowledge(
        self, acks: Acks, *, epoch: int | None = None, version: int = 2, topic: str = TOPIC, **options: Any
    ) -> Any:
        topic_id = self.simulated_broker.broker.catalogue.topic(topic).id
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.session_epoch if epoch is None else epoch,
            topics=[
                AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[AcknowledgePartition(index, _batches(batches)) for index, batches in acks.items()],
                )
            ],
            **options,
        )
        self._count(request.share_session_epoch)
        return await self.simulated_broker.send(request, version, self.connection)

    async def settle(self, first: int, last: int, types: int | list[int] = ACCEPT, **options: Any) -> int:
        """Return the error code of partition 0."""
        return code_of(await self.acknowledge({0: [(first, last, types)]}, **options))

    def _count(self, epoch: int) -> None:
        """Advance the session epoch like a client, or begin a new session after an error."""
        self.session_epoch = 0 if epoch == -1 else epoch + 1


def _batches(acks: Iterable[tuple[int, int, int | list[int]]]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first, last, types if isinstance(types, list) else [types]) for first, last, types in acks
    ]


def responses_by_partition(response: Any) -> dict[int, Any]:
    """Return the partitions of a response by number, of all topics."""
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def code_of(response: Any, partition: int = 0) -> int:
    return int(response.error_code or responses_by_partition(response)[partition].error_code)


def ack_code(response: ShareFetchResponse, partition: int = 0) -> int:
    return int(responses_by_partition(response)[partition].acknowledge_error_code)


def taken(response: ShareFetchResponse) -> list[AcquiredRecord]:
    assert response.error_code == 0, response
    return [one for data in responses_by_partition(response).values() for one in _acquired(data)]


def _acquired(data: ShareFetchPartitionData) -> list[AcquiredRecord]:
    assert data.error_code == 0, data
    values = dict(offsets_and_values(data.records))  # type: ignore[arg-type]
    return [
        AcquiredRecord(data.partition_index, offset, values[offset], acquired.delivery_count)
        for acquired in data.acquired_records
        for offset in range(acquired.first_offset, acquired.last_offset + 1)
        if offset in values
    ]


def offsets(messages: Iterable[AcquiredRecord]) -> list[int]:
    return [message.offset for message in messages]


async def describe_share(simulated_broker: SimulatedBroker, group: str = GROUP) -> Any:
    (described,) = (await simulated_broker.send(ShareGroupDescribeRequest(group_ids=[group]), 1)).groups
    return described


async def coordinator(simulated_cluster: SimulatedCluster, group: str = GROUP) -> SimulatedClusterBroker:
    """Return the coordinator that the brokers name, once that one is alive."""
    while True:
        for simulated_broker in simulated_cluster.up:
            found = await simulated_broker.send(FindCoordinatorRequest(key=group), 3)
            if found.error_code == 0 and simulated_cluster[found.node_id].is_open:
                return simulated_cluster[found.node_id]
        await simulated_broker.pass_time(0.1)
