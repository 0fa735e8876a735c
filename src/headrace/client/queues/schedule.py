"""Delayed messages of a topic: add, list, cancel and reschedule them.

    schedule = Schedule(cluster, "orders")
    where = await schedule.add(b"remind", key=b"c-42", when=When(delay_ms=60_000))
    await schedule.move(where, due_ms)
    await schedule.cancel(where)

They wait in the co-located topic `__delayed.<topic>` until they are due. The id of a delayed message is its position
there; the released message carries it in the header `headrace-delayed-id`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.client.produce.producer import Header, Producer
from headrace.machines.delays.due_time import parse_repeat
from headrace.model.errors import InvalidRequest, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.model.message_headers import DELAY, DELIVER_AT, REPEAT, header_text
from headrace.model.names import delayed_topic, owner_of
from headrace.wire.messages.delays import (
    CANCEL,
    AlterDelayedRequest,
    AlterDelayedResponse,
    DelayedChange,
    DelayedMessage,
    ListDelayedRequest,
    ListDelayedResponse,
)

_PAGE = 500


@dataclass(frozen=True, slots=True)
class When:
    """When a message is due: at a time or after a delay, and how it repeats (`every 10s`, or five cron fields). With
    `repeat` alone, the first delivery is the next time of the schedule."""

    due_ms: int | None = None
    delay_ms: int | None = None
    repeat: str | None = None

    def headers(self) -> list[Header]:
        """The headers of the delayed message. Raises `InvalidRequest` for contradictory settings."""
        if self.due_ms is not None and self.delay_ms is not None:
            raise InvalidRequest("a message is due at a time or after a while, not both")
        headers: list[Header] = []
        if self.due_ms is not None:
            headers.append((DELIVER_AT, b"%d" % self.due_ms))
        if self.delay_ms is not None:
            headers.append((DELAY, b"%dms" % self.delay_ms))
        if self.repeat is not None:
            parse_repeat(self.repeat)
            headers.append((REPEAT, self.repeat.encode()))
        return headers


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    id: MessageId
    due_ms: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def repeat(self) -> str | None:
        return header_text(self.headers, REPEAT)


class Schedule:
    """The delayed messages of one topic, over a cluster that the caller opened."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._delayed = delayed_topic(topic)

    async def add(
        self,
        value: bytes | None,
        *,
        when: When,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
    ) -> MessageId:
        """Returns when the message is committed. To add many, use one producer for `__delayed.<topic>`."""
        named = [*headers, *when.headers()]
        async with Producer(self._cluster) as producer:
            receipt = await producer.publish(self._delayed, value, key=key, headers=named, partition=partition)
        return MessageId(*receipt)

    async def messages(self) -> AsyncIterator[ScheduledMessage]:
        """The waiting messages, by due time. Messages that are added or released meanwhile may or may not be listed."""
        heads: list[tuple[int, int, ScheduledMessage, AsyncIterator[ScheduledMessage]]] = []
        for partition in range(await self._partitions()):
            messages = self._messages_of(partition)
            if (first := await anext(messages, None)) is not None:
                heads.append((first.due_ms, partition, first, messages))
        heapify(heads)
        while heads:
            _, partition, message, messages = heads[0]
            yield message
            if (following := await anext(messages, None)) is not None:
                heapreplace(heads, (following.due_ms, partition, following, messages))
            else:
                heappop(heads)

    async def _messages_of(self, partition: int) -> AsyncIterator[ScheduledMessage]:
        after = -1, -1
        while page := await self.page(partition, *after):
            for message in page:
                yield message
            after = page[-1].due_ms, page[-1].id.offset

    async def count(self) -> int:
        answers = [await self._list(index, -1, -1, 1) for index in range(await self._partitions())]
        return sum(response.waiting for response in answers)

    async def cancel(self, message_id: MessageId) -> None:
        """Raises `InvalidRecordState` if the message is not waiting any more."""
        await self._alter(message_id, CANCEL)

    async def move(self, message_id: MessageId, due_ms: int) -> None:
        """Set the due time; for a repeating message, that of its next delivery. Raises `InvalidRecordState`."""
        await self._alter(message_id, due_ms)

    async def page(self, partition: int, after_due_ms: int, after_offset: int) -> list[ScheduledMessage]:
        """The next waiting messages of a partition, by due time; empty at the end."""
        response = await self._list(partition, after_due_ms, after_offset, _PAGE)
        return [self._scheduled(partition, one) for one in response.messages]

    async def _list(self, partition: int, after_due_ms: int, after_offset: int, count_max: int) -> ListDelayedResponse:
        request = ListDelayedRequest(
            topic=self.topic,
            partition=partition,
            after_due_ms=after_due_ms,
            after_offset=after_offset,
            count_max=count_max,
        )
        response: ListDelayedResponse = await self._cluster.call_until_success(request, (self._delayed, partition))
        return response

    async def _partitions(self) -> int:
        """The number of partitions; 0 if no message of the topic was ever delayed."""
        try:
            view = await self._cluster.call_with_retries(lambda: self._cluster.current_topic(self._delayed))
        except UnknownTopicOrPartition:
            await self._cluster.call_with_retries(lambda: self._cluster.topic(self.topic))
            return 0
        return len(view.partitions)

    async def _alter(self, message_id: MessageId, due_ms: int) -> None:
        if message_id.topic != self._delayed:
            raise InvalidRequest(f"{message_id} is not the id of a message that waits for {self.topic}")
        change = DelayedChange(offset=message_id.offset, due_ms=due_ms)
        request = AlterDelayedRequest(topic=self.topic, partition=message_id.partition, changes=[change])

        async def attempt() -> None:
            response: AlterDelayedResponse = await self._cluster.call_leader(message_id[:2], request)
            result = only_result(response.results)
            raise_for_code(result.error_code, result.error_message)

        await self._cluster.call_with_retries(attempt)

    def _scheduled(self, partition: int, result: DelayedMessage) -> ScheduledMessage:
        return ScheduledMessage(
            MessageId(self._delayed, partition, result.offset),
            result.due_ms,
            result.timestamp_ms,
            None if result.key is None else bytes(result.key),
            None if result.value is None else bytes(result.value),
            [(one.name, None if one.value is None else bytes(one.value)) for one in result.headers],
        )


def topic_of(message_id: MessageId) -> str:
    """The topic that a message with this id waits for. Raises `InvalidRequest`."""
    topic = owner_of(message_id.topic)
    if topic is None or message_id.topic != delayed_topic(topic):
        raise InvalidRequest(
            f"{message_id} is not the id of a delayed message: write {delayed_topic('TOPIC')}:PARTITION:OFFSET"
        )
    return topic
