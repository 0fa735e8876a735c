"""Write messages that exhausted their delivery attempts, or were rejected, to the dead-letter topic.

- A dead letter has the key, value and headers of the message; the headers `headrace-dead-*` contain origin and reason.
- It is produced to the leader of the dead-letter topic like any message. Its own dedup id ensures that a dead letter
  that is written again after a crash is stored once.
- The dead-letter topic is created with the first dead letter, with one partition and as many replicas as the topic.
  Dead letters are kept until they are settled. A dead letter that fails again is dropped.
- Topic names can be reused, so a dead letter contains the id of its topic, and a dead-letter topic that is created here
  is deleted with its topic (decision 029).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.cluster.peers import Peers
from headrace.broker.handlers import RequestContext
from headrace.broker.partition import Partition
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_markers import retry_pauses
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import UndeliverableMessage
from headrace.model.errors import HeadraceError, NotLeader, OffsetOutOfRange, TopicAlreadyExists, UnknownTopicId
from headrace.model.ids import MessageId
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEDUP_ID,
    DeadLetterOrigin,
    Headers,
    header_value,
    with_dead_letter_headers,
    with_headers,
    without,
)
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic
from headrace.model.topic_configs import DAY_MS
from headrace.registry.topics import topic_key
from headrace.runtime.clock import Clock
from headrace.storage.log.reading import LogSlice
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, build_batch, parse_header, read_records
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.state_records.acks_records import Settled, SettledHow

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard


log = logging.getLogger(__name__)

_PARTITIONS = 1  # dead letters are few, and are inspected together
_DEDUP_WINDOW_MS = DAY_MS  # longer than a partition is without a leader after a crash
_REASON_LENGTH_MAX = 4096
_HEADER_ROOM_BYTES = 1 << 20  # for headers, and because a single message may compress worse than many
_UNPACKED_BYTES_MAX = 256 << 20
_TIMEOUT_SECONDS = 10.0
_CONNECTION_KEY = "dead letters"
_ACKS_ALL = -1
_VERSION = 13  # identifies the topic by id: its name may be reused before the leader gets the request

ProduceFunction = Callable[[ProduceRequest, RequestContext], Awaitable[ProduceResponse | None]]


class DeadLetterProducer:
    """`produce` is the Produce handler of this broker."""

    def __init__(self, catalogue: Catalogue, produce: ProduceFunction, peers: Peers, clock: Clock) -> None:
        self._catalogue = catalogue
        self._produce = produce
        self._peers = peers
        self._clock = clock

    async def dead_letter(
        self, topic: str, index: int, offset: int, subscription: str, attempts: int, reason: str
    ) -> None:
        """Write the dead letter of a message of a partition that this broker leads, and wait until it is committed. The
        caller must retry after an error."""
        if topic.endswith(DEAD_LETTER_SUFFIX):
            dead = MessageId(topic, index, offset)
            log.warning(
                "dead letter failed again and was dropped subscription=%s dead_letter=%s attempts=%d reason=%s",
                subscription,
                dead,
                attempts,
                reason,
            )
            return
        source = self._catalogue.topic(topic)  # before the first await: later the name may belong to another topic
        found = await _read_message(self._catalogue.partition(topic, index), offset)
        if found is None:
            return  # retention or compaction has already deleted the message
        record, compression = found
        now_ms = self._clock.now_ms()
        death = DeadLetterOrigin(
            reason[:_REASON_LENGTH_MAX], attempts, subscription, topic, index, offset, now_ms, source.id
        )
        copy = BatchRecord(record.key, record.value, _dead_letter_headers(record, death), now_ms)
        to = await self._ensure(source)
        await self._write(to, index % to.partition_count, build_batch([copy], compression=compression))

    async def _ensure(self, topic: Topic) -> Topic:
        name = dead_letter_topic(topic.name)
        found = self._catalogue.find(name)
        if found is not None and found.record.dead_letters_of not in (None, topic.id):
            await self._catalogue.mirror.read([topic_key(topic.name), topic_key(name)])
            found = self._catalogue.find(name)
        if self._catalogue.find_by_id(topic.id) is None:
            raise UnknownTopicId(f"topic {topic.name} was deleted or recreated")
        if found is not None:
            return found
        configs = {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "dedup.window.ms": str(_DEDUP_WINDOW_MS),
            "max.message.bytes": str(min(topic.config.max_message_bytes + _HEADER_ROOM_BYTES, 2**31 - 1)),
            "min.insync.replicas": str(topic.config.min_insync_replicas),
            "retention.bytes": "-1",
            "retention.mode": "acked",
            "retention.ms": "-1",
        }
        replication = max(min(topic.replication, len(self._catalogue.usable_brokers())), 1)
        with suppress(TopicAlreadyExists):  # created concurrently for another message
            await self._catalogue.create(name, _PARTITIONS, configs, replication=replication, dead_letters_of=topic)
        return self._catalogue.topic(name)

    async def _write(self, topic: Topic, index: int, batch: bytearray) -> None:
        from headrace.client.errors import only_result, raise_for_code  # imported on first use: keeps startup fast

        request = ProduceRequest(
            acks=_ACKS_ALL,
            timeout_ms=int(_TIMEOUT_SECONDS * 1000),
            topic_data=[
                TopicProduceData(
                    name=topic.name,
                    topic_id=topic.id,
                    partition_data=[PartitionProduceData(index=index, records=memoryview(batch))],
                )
            ],
        )
        if index in topic.led:
            response = await self._produce(request, _internal_context())
        else:
            leader = self._catalogue.leader_node(topic.name, index)
            if leader is None:
                raise NotLeader(f"partition {topic.name}-{index} has no leader")
            response = await self._peers.call(
                leader.node_id,
                request,
                timeout_seconds=_TIMEOUT_SECONDS,
                connection_key=_CONNECTION_KEY,
                version_max=_VERSION,
            )
        assert response is not None
        answer = only_result(only_result(response.responses).partition_responses)
        raise_for_code(answer.error_code, answer.error_message)


async def _read_message(partition: Partition, offset: int) -> tuple[BatchRecord, int] | None:
    """Return the message at an offset and the compression of its batch, or None if it was deleted.

    Raises `OffsetNotAvailable` at or above the high watermark: an empty read there does not mean that it is gone.
    """
    epoch = partition.leader_epoch
    partition.ensure_committed(offset)
    data = b""
    while not data:
        try:
            piece = partition.read(offset, HEADER_SIZE, partition.high_watermark)
        except OffsetOutOfRange:
            return None
        if isinstance(piece, LogSlice):
            data = piece.bytes()
            piece.release()
            break
        data = await piece.load()
        if piece.next_offset > offset and not data:
            return None
        if not partition.is_leader or partition.leader_epoch != epoch:
            raise NotLeader(f"this broker is no longer the leader of {partition.topic}-{partition.index}")
    if not data:
        return None
    header = parse_header(data)
    batch = memoryview(data)[: header.size_bytes]
    for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
        if record.offset == offset and not header.is_control:
            return record, header.compression
    return None


def _dead_letter_headers(record: BatchRecord, death: DeadLetterOrigin) -> Headers:
    """Build the headers of a dead letter. A dedup id of the original message is kept under another name."""
    own_id = f"{death.subscription}/{death.topic_id}/{death.partition}/{death.offset}/{death.attempts}"
    headers = without(
        with_headers(with_dead_letter_headers(record.headers, death), {DEDUP_ID: own_id}), [DEAD_DEDUP_ID]
    )
    given = header_value(record.headers, DEDUP_ID)
    return headers if given is None else [*headers, (DEAD_DEDUP_ID, given)]


def _internal_context() -> RequestContext:
    return RequestContext(_VERSION, _CONNECTION_KEY, "", "", lambda _is_held: None, lambda: None)


# Write messages that exhausted their delivery attempts, or were rejected, to the dead-letter topic, then settle them.
#
# The order ensures that no message is lost. After a crash in between, the message is written again, and the dead-letter
# topic drops the duplicate by its dedup id. If a write fails, it is retried with exponential backoff; meanwhile the
# message is not delivered, and other messages are not affected.


_CONCURRENT_COPIES = 32

CopyDeadLetter = Callable[[str, int, int, str, int, str], Awaitable[None]]
"""Takes topic, partition, offset, subscription, attempts and reason; returns when the dead letter is committed."""


class DeadLetterWriter:
    def __init__(
        self,
        shard: SubscriptionShard,
        dead_letter: CopyDeadLetter,
        start: Callable[..., asyncio.Task[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._dead_letter = dead_letter
        self._start = start
        self._now_ms = now_ms
        self._task: asyncio.Task[None] | None = None
        self._failed: dict[tuple[str, int], HeadraceError] = {}  # failed in this round: try the others first

    def look(self) -> None:
        """Check for messages to dead-letter."""
        if self._task is None and next(self._dying(), None) is not None:
            self._task = self._start(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _dying(self) -> Iterator[tuple[str, UndeliverableMessage]]:
        for name, subscription in list(self._shard.subscriptions.items()):
            for dying in subscription.dying():
                yield name, dying

    async def _run(self) -> None:
        try:
            for pause in retry_pauses():
                error = await self._copy_all()
                if error is None:
                    return
                log.warning(
                    "writing dead letters failed, will retry partition=%s-%d messages=%d error=%s",
                    *self._shard.place,
                    len(self._failed),
                    error,
                )
                await asyncio.sleep(pause)
        finally:
            self._task = None

    async def _copy_all(self) -> HeadraceError | None:
        """Try to write all dead letters; return an error if some failed."""
        self._failed.clear()
        try:
            while await self._copy_some():
                pass
        except HeadraceError as error:
            return error
        return next(reversed(self._failed.values()), None)

    async def _copy_some(self) -> bool:
        """Try messages that were not tried in this round; return whether there were any."""
        self._shard.source()
        untried = (one for one in self._dying() if (one[0], one[1].offset) not in self._failed)
        some = list(islice(untried, _CONCURRENT_COPIES))
        async with asyncio.TaskGroup() as tasks:
            for one in some:
                tasks.create_task(self._copy_one(*one))
        return bool(some)

    async def _copy_one(self, name: str, dying: UndeliverableMessage) -> None:
        how: SettledHow = "dead"
        try:
            source = self._shard.source()
            if dying.offset < source.log.start_offset:
                how = "expired"
            elif not self._shard.find(name).config.headrace_dead_letters_enable:
                how = "discarded"
            else:
                await self._dead_letter(source.topic, source.index, dying.offset, name, dying.attempts, dying.reason)
                self._shard.source()
            subscription = self._shard.find(name)
        except HeadraceError as error:
            self._failed[name, dying.offset] = error
            return
        if subscription.state_of(dying.offset).state == "dying":  # no seek has changed it meanwhile
            ranges = [(dying.offset, dying.offset)]
            self._shard.put(name, subscription, [Settled(at=self._now_ms(), how=how, ranges=ranges)])
            _count_settled(subscription.stats, how)
            self._shard.wake(name)  # messages with the same key may have waited for it


def _count_settled(stats: SubscriptionStats, how: SettledHow) -> None:
    if how == "dead":
        stats.dead += 1
    elif how == "discarded":
        stats.discarded += 1
    else:
        stats.expired += 1
