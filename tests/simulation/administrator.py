"""A client that creates, writes, trims, extends and deletes topics, repeatedly, under a few names.

- A confirmed request is in effect for good. An unconfirmed one has either taken effect or not, once the broker is back.
- The client asserts that what it reads from the broker agrees with this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.clients import Client

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings
from headrace.client.errors import raise_for_code
from headrace.client.fetch.consumer import Consumer
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError, TopicAlreadyExists, UnknownTopicOrPartition
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

NAMES = ("red", "green")
PRODUCE_BY_NAME = 12


@dataclass(slots=True)
class Expected:
    """The expected state of one partition: acknowledged values by offset, possible values, and the log start."""

    written: dict[int, bytes] = field(default_factory=dict)
    possible: set[bytes] = field(default_factory=set)
    trimmed: int = 0
    trimmed_perhaps: int = 0


@dataclass(slots=True)
class Topic:
    """`exists` is None after an unconfirmed request, until the client lists the topics."""

    name: str
    exists: bool | None = False
    partitions: list[Expected] = field(default_factory=list)
    partitions_perhaps: int = 0


class Administrator(Client):
    # One attempt per call, without a timeout while the broker is up: an unconfirmed request never takes effect later.
    settings = ClientSettings(request_timeout_seconds=20.0, dial_timeout_seconds=2.0, deadline_seconds=1e-6)

    async def work(self) -> None:
        self.admin = TopicAdmin(self.cluster)
        self.topics = [Topic(name) for name in NAMES]
        self.values = 0
        while not self.is_done:
            topic = self.random.choice(self.topics)
            try:
                await self._step(topic)
            except (TopicAlreadyExists, UnknownTopicOrPartition) as error:
                raise AssertionError(f"{topic.exists=}: {error}") from error
            except HeadraceError:
                topic.exists = None
            await self.think(0.3)
        for topic in self.topics:
            await self._verify_partitions(topic)
            if topic.exists:
                for index, expected in enumerate(topic.partitions):
                    await self._audit(TopicPartition(topic.name, index), expected)

    async def _step(self, topic: Topic) -> None:
        if topic.exists is None:
            await self._verify_partitions(topic)
        elif not topic.exists:
            topic.partitions = [Expected() for _ in range(self.random.randint(1, 2))]
            topic.partitions_perhaps = len(topic.partitions)
            await self.admin.create(NewTopic(topic.name, len(topic.partitions)))
            topic.exists = True
        else:
            index = self.random.randrange(len(topic.partitions))
            match self.random.randrange(8):
                case 0:
                    await self.admin.delete(topic.name)
                    topic.exists = False
                case 1:
                    await self._trim(topic, index)
                case 2:
                    topic.partitions_perhaps = len(topic.partitions) + 1
                    await self.admin.add_partitions(topic.name, topic.partitions_perhaps)
                    topic.partitions.append(Expected())
                case _:
                    await self._write(topic, index)

    async def _verify_partitions(self, topic: Topic) -> None:
        found = {view.name: view for view in await self.admin.list()}.get(topic.name)
        if topic.exists is not None:
            assert topic.exists == (found is not None), f"{topic.name} is there: {found is not None}"
        if found is not None:
            count = len(found.partitions)
            assert len(topic.partitions) <= count <= topic.partitions_perhaps
            topic.partitions += [Expected() for _ in range(count - len(topic.partitions))]
        topic.exists = found is not None

    async def _write(self, topic: Topic, index: int) -> None:
        expected = topic.partitions[index]
        self.values += 1
        value = b"%s-%d" % (topic.name.encode(), self.values)
        expected.possible.add(value)
        batch = build_batch([BatchRecord(value=value, timestamp_ms=self.cluster.clock.now_ms())])
        data = PartitionProduceData(index=index, records=memoryview(batch))
        request = ProduceRequest(
            acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic.name, partition_data=[data])]
        )
        response: ProduceResponse = await self.cluster.call(request, version_max=PRODUCE_BY_NAME)
        partition = response.responses[0].partition_responses[0]
        raise_for_code(partition.error_code, partition.error_message)
        assert partition.base_offset > max(expected.written, default=-1)
        expected.written[partition.base_offset] = value

    async def _trim(self, topic: Topic, index: int) -> None:
        expected, target = topic.partitions[index], TopicPartition(topic.name, index)
        offset = self.random.choice([expected.trimmed, *expected.written])
        expected.trimmed_perhaps = max(expected.trimmed_perhaps, offset)
        started = await self.admin.trim({target: offset})
        assert offset <= started[target] <= expected.trimmed_perhaps
        expected.trimmed = max(expected.trimmed, offset)

    async def _audit(self, target: TopicPartition, expected: Expected) -> None:
        """Check that all expected records are at their offsets, and that there are no others."""
        start = (await find_offsets(self.cluster, {target: START}))[target].offset
        end = (await find_offsets(self.cluster, {target: END}))[target].offset
        assert expected.trimmed <= start <= expected.trimmed_perhaps, f"{target} begins at {start}"
        found = {}
        async with Consumer(self.cluster, partitions={target: start}) as consumer:
            while consumer.position(target) < end:
                found.update({record.offset: record.value for record in await consumer.poll()})
        assert set(found.values()) <= expected.possible, f"{target} holds {found}"
        missing = {at: value for at, value in expected.written.items() if at >= start and found.get(at) != value}
        assert not missing, f"{target} has lost {missing}"
