"""Consumer groups with the consumer protocol (KIP-848) and share groups (KIP-932).

- A consumer group commits only what its members received, and finds what it committed.
- A share group never receives a record again after its accept was confirmed, and finally has accepted every record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.simulation.clients import IMPATIENT, PARTITIONS, Client, record_tuples
from tests.simulation.clients import TOPIC as ORDERS
from tests.simulation.features.feature import LONG_MAX, Draft, Feature, TopicWriter

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.errors import raise_for_code
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.groups.offsets import END, Commit, ConsumerGroupMetadata, commit, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History
from headrace.wire.batches.batch import parse_header, read_records
from headrace.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from headrace.wire.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

GROUP, SHARE_GROUP, SHARED = "modern", "sharers", "shared"
ACCEPT, RELEASE = 1, 2
CONFIGS = {
    "share.delivery.count.limit": "1000",
    "share.record.lock.duration.ms": "1500",
    "headrace.retry.backoff.ms": "0",
}
RECORD_BYTES_MAX = 1 << 20


class ConsumerProtocolMember(Client):
    """A member of a consumer group: it sends heartbeats, reads its assigned partitions and commits."""

    settings = IMPATIENT

    async def work(self) -> None:
        self.lives = 0
        while not self.is_done:
            self.lives += 1
            self.member_id, self.epoch = f"{self.name}-{self.lives}", 0
            self.owned: set[int] = set()
            with suppress(HeadraceError):
                await self._live(self.random.choice((5, 50)))
            await self.think(0.2)

    async def _live(self, turns: int) -> None:
        for _ in range(turns):
            if self.is_done:
                break
            await self._heartbeat()
            if self.owned:
                await self._read()
            await self.think(0.2)
        self.epoch = -1
        await self._heartbeat()

    async def _heartbeat(self) -> None:
        topic = await self.cluster.topic(ORDERS)
        owned = [TopicPartitions(topic.topic_id, sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=5000,
            subscribed_topic_names=[ORDERS],
            topic_partitions=owned,
        )
        response: Any = await self.cluster.call_coordinator(GROUP, request)
        self.cluster.raise_for_coordinator(GROUP, response.error_code, response.error_message)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {index for one in response.assignment.topic_partitions for index in one.partitions}

    async def _read(self) -> None:
        """Read from the committed offset, which is fetched each time."""
        targets = [TopicPartition(ORDERS, index) for index in sorted(self.owned)]
        looks = [self.history.begin_offset_fetch(self.name, GROUP, target.partition) for target in targets]
        found = await committed(self.cluster, GROUP, targets)
        offsets = {target: found[target].offset if target in found else 0 for target in targets}
        for look in looks:
            target = TopicPartition(ORDERS, look.partition)
            self.history.end_offset_fetch(look, found[target].offset if target in found else -1)
        settings = ConsumerSettings(commit_seconds=None)
        async with Consumer(self.cluster, partitions=offsets, settings=settings) as consumer:
            records = await consumer.poll(50, timeout_seconds=0.5)
            self.history.record_poll(self.name, record_tuples(records), GROUP)
            ends = {target: consumer.position(target) for target in targets}
        moved = {target: end for target, end in ends.items() if end > offsets[target]}
        commits = [self.history.begin_commit(self.name, GROUP, target.partition, end) for target, end in moved.items()]
        if moved:
            who = ConsumerGroupMetadata(self.epoch, self.member_id)
            await commit(self.cluster, GROUP, {target: Commit(end) for target, end in moved.items()}, who)
            for one in commits:
                self.history.end_commit(one)


class ShareMember(Client):
    """Fetches from one leader after the other, accepts most records and releases the others."""

    settings = IMPATIENT
    catches_up = False

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.accepted: dict[bytes, int] = {}
        """The moment in the history at which the response to the accept of each value arrived."""
        self.acquired: list[tuple[bytes, int]] = []
        """The values, and when each accept was sent."""

    async def work(self) -> None:
        while not self.is_done:
            for partition in range(PARTITIONS):
                try:
                    await self._fetch(partition)
                except HeadraceError:
                    self.cluster.invalidate_metadata()
            await self.think(0.1)

    async def _fetch(self, index: int) -> None:
        topic = await self.cluster.topic(SHARED)
        requested = ShareFetchTopic(topic.topic_id, [ShareFetchPartition(index, [])])
        request = ShareFetchRequest(
            group_id=SHARE_GROUP,
            member_id=self.name,
            share_session_epoch=0,
            max_wait_ms=200,
            min_bytes=1,
            max_records=self.random.choice((1, 20)),
            batch_size=20,
            topics=[requested],
            forgotten_topics_data=[],
        )
        leader = (await self.cluster.partition(SHARED, index)).leader
        self.history.now += 1
        began = self.history.now
        response: Any = await self._call(request, leader)
        for data in [data for one in response.responses for data in one.partitions]:
            raise_for_code(data.error_code, data.error_message)
            values = dict(_records(bytes(data.records or b"")))
            ranges = [(one.first_offset, one.last_offset) for one in data.acquired_records]
            for number, (first, last) in enumerate(ranges, 1):
                self.acquired += [(values[offset], began) for offset in range(first, last + 1) if offset in values]
                kind = ACCEPT if self.catches_up or self.random.random() < 0.8 else RELEASE
                batch = AcknowledgementBatch(first, last, [kind])
                asked_for = AcknowledgeTopic(topic.topic_id, [AcknowledgePartition(index, [batch])])
                await self._acknowledge(
                    ShareAcknowledgeRequest(SHARE_GROUP, self.name, number, topics=[asked_for]), leader
                )
                if kind == ACCEPT:
                    self.history.now += 1
                    for offset in range(first, last + 1):
                        self.accepted.setdefault(values[offset], self.history.now)

    async def _acknowledge(self, request: ShareAcknowledgeRequest, leader: int) -> None:
        response: Any = await self._call(request, leader)
        for data in [data for one in response.responses for data in one.partitions]:
            raise_for_code(data.error_code, data.error_message)

    async def _call(self, request: Any, leader: int) -> Any:
        response: Any = await self.cluster.call(request, node_id=leader)
        raise_for_code(response.error_code, response.error_message)
        return response


class Groups(Feature):
    needs_broker_clocks = True
    # A member that lost its coordinator rejoins with another id; its partitions wait until the old session ends.
    settings: Mapping[str, str] = {
        "group.consumer.heartbeat.interval.ms": "2000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.session.timeout.ms": "6000",
    }

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        self.is_share = self.random.random() < 0.5
        self.history = History(has_gaps=True)
        self.sharers: list[ShareMember] = []

    def attach(self) -> None:
        scenario = self.scenario
        if not self.is_share:
            self.others = scenario.draw_clients(ConsumerProtocolMember, "modern-member", (1, 2))
            return
        writer = scenario.create_client(TopicWriter, "share-writer", self.history)
        writer.topic, writer.draft = SHARED, self._draft
        self.writers = [writer]
        self.sharers = [scenario.create_client(ShareMember, f"sharer{number}", self.history) for number in range(2)]

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, *self.sharers]

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        now_ms = writer.cluster.clock.now_ms()
        return Draft(f"{writer.name}-{number}".encode(), self.random.randrange(PARTITIONS), timestamp_ms=now_ms)

    async def prepare(self, admin: TopicAdmin) -> None:
        if self.is_share:
            configs = {"min.insync.replicas": "2", "retention.ms": "-1", "message.timestamp.after.max.ms": LONG_MAX}
            await self.create_known_topic(admin, NewTopic(SHARED, PARTITIONS, 3, configs))
            subscriptions = SubscriptionAdmin(self.scenario.watcher.cluster)
            await subscriptions.create(SHARED, SHARE_GROUP, Position(START))
            await subscriptions.configure(SHARED, SHARE_GROUP, CONFIGS)

    async def recover(self, healed: Mapping[int, int]) -> None:
        members, sharers = self.others, self.sharers
        self.others, self.sharers = [], []
        await super().recover(healed)
        self.others, self.sharers = members, sharers
        for sharer in sharers:
            sharer.catches_up = True
        while (missing := await self._missing()) is not None:
            self.scenario.missing = missing
            await asyncio.sleep(0.5)
        for client in self.clients:
            client.is_done = True
        await self.scenario.until_none(lambda: self.scenario.unfinished(*self.clients))

    async def _missing(self) -> str | None:
        cluster = self.scenario.watcher.cluster
        try:
            if self.is_share:
                left = sum(one.backlog for one in await SubscriptionAdmin(cluster).describe(SHARE_GROUP, [SHARED]))
                return f"{left} messages of {SHARED} are not accepted" if left else None
            targets = [TopicPartition(ORDERS, index) for index in range(PARTITIONS)]
            ends = await find_offsets(cluster, dict.fromkeys(targets, END))
            found = await committed(cluster, GROUP, targets)
            wanted = {target: at.offset for target, at in ends.items() if at.offset}
            stands = {target: one.offset for target, one in found.items() if one.offset}
            return None if stands == wanted else f"{GROUP} does not catch up: {stands} instead of {wanted}"
        except HeadraceError as error:
            return f"the groups cannot be looked at: {error}"

    def anomalies(self) -> Iterator[Anomaly]:
        accepted: dict[bytes, int] = {}
        for one in self.sharers:
            for value, moment in one.accepted.items():
                accepted[value] = min(moment, accepted.get(value, moment))
        for one in self.sharers:
            for value, began in one.acquired:
                if began > accepted.get(value, began):
                    yield Anomaly("accepted message came back", 0, f"{value!r}")
        seen = {value for one in self.sharers for value, _ in one.acquired}
        for send in self.history.sends:
            if send.is_ok and send.value not in seen:
                yield Anomaly("never given to the share group", send.partition, f"{send.value!r} at {send.offset}")


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        header = parse_header(memoryview(data), position)
        batch = memoryview(data)[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control:
            for record in read_records(batch, header, RECORD_BYTES_MAX):
                yield record.offset, record.value or b""
