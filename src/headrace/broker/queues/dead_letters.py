"""Write messages that exhausted their delivery attempts, or were rejected, to the dead-letter topic.

- A dead letter has the key, value and headers of the message; the headers `headrace-dead-*` contain origin and reason.
- It is produced to the leader of the dead-letter topic like any message. Its own dedup id ensures that a dead letter
  that is written again after a crash is stored once. `SubscriptionShard` settles the message afterwards.
- The dead-letter topic is created with the first dead letter, with one partition and as many replicas as the topic.
  Dead letters are kept until they are settled. A dead letter that fails again is dropped.
- Topic names can be reused, so a dead letter contains the id of its topic, and a dead-letter topic that is created here
  is deleted with its topic (decision 029).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.broker.cluster.peers import Peers
from headrace.broker.coordination.state_log import read_batches
from headrace.broker.handlers import RequestContext, internal_context
from headrace.broker.partition import Partition
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.configs import DAY_MS
from headrace.model.errors import NotLeader, OffsetOutOfRange, TopicAlreadyExists, UnknownTopicId
from headrace.model.ids import MessageId
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEDUP_ID,
    REDRIVEN,
    DeadLetterOrigin,
    Headers,
    header_value,
    with_dead_letter_headers,
    with_headers,
    without,
)
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic
from headrace.registry.topics import topic_key
from headrace.runtime.clock import Clock
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, build_batch, read_records, split_batches
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

log = logging.getLogger(__name__)

_PARTITIONS = 1  # dead letters are rare, and are inspected together
_DEDUP_WINDOW_MS = DAY_MS  # longer than a partition is without a leader after a crash
_REASON_LENGTH_MAX = 4096
_HEADER_ROOM_BYTES = 1 << 20  # for headers, and because a single message may compress worse than many
_UNPACKED_BYTES_MAX = 256 << 20
_TIMEOUT_SECONDS = 10.0
_CONNECTION_KEY = "dead letters"
_ACKS_ALL = -1
_VERSION = 13  # identifies the topic by id: its name may be reused before the leader gets the request

ProduceFunction = Callable[[ProduceRequest, RequestContext], Awaitable[ProduceResponse | None]]
CopyDeadLetter = Callable[[str, int, int, str, int, str, int], Awaitable[None]]
"""`DeadLetterProducer.dead_letter`."""


class DeadLetterProducer:
    """`produce` is the Produce handler of this broker."""

    def __init__(self, catalogue: Catalogue, produce: ProduceFunction, peers: Peers, clock: Clock) -> None:
        self._catalogue = catalogue
        self._produce = produce
        self._peers = peers
        self._clock = clock

    async def dead_letter(
        self, topic: str, index: int, offset: int, subscription: str, attempts: int, reason: str, redriven: int = 0
    ) -> None:
        """Write the dead letter of a message of a partition that this broker leads, and wait until it is committed. The
        caller must retry after an error. `redriven`: how many times the subscription got the message again."""
        if topic.endswith(DEAD_LETTER_SUFFIX):
            log.warning(
                "dead letter failed again and was dropped subscription=%s dead_letter=%s attempts=%d reason=%s",
                subscription,
                MessageId(topic, index, offset),
                attempts,
                reason,
            )
            return
        source = self._catalogue.topic(topic)  # before the first await: later the name may belong to another topic
        found = await read_message(self._catalogue.partition(topic, index), offset)
        if found is None:
            return  # retention or compaction has already deleted the message
        record, compression = found
        now_ms = self._clock.now_ms()
        origin = DeadLetterOrigin(
            reason[:_REASON_LENGTH_MAX], attempts, subscription, topic, index, offset, now_ms, source.id
        )
        copy = BatchRecord(record.key, record.value, _dead_letter_headers(record, origin, redriven), now_ms)
        target = await self._ensure_topic(source)
        await self._write(target, index % target.partition_count, build_batch([copy], compression=compression))

    async def _ensure_topic(self, topic: Topic) -> Topic:
        """Return the dead-letter topic of a topic; create it if it does not exist."""
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
            response = await self._produce(request, internal_context(_VERSION, _CONNECTION_KEY))
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
        result = only_result(only_result(response.responses).partition_responses)
        raise_for_code(result.error_code, result.error_message)


async def read_message(partition: Partition, offset: int) -> tuple[BatchRecord, int] | None:
    """Return the message at an offset and the compression of its batch, or None if it was deleted.

    Raises `OffsetNotAvailable` at or above the high watermark: an empty read there does not mean a deleted message.
    """
    epoch = partition.leader_epoch
    partition.ensure_committed(offset)
    try:
        data, _ = await read_batches(partition, offset, partition.high_watermark, HEADER_SIZE)
    except OffsetOutOfRange:
        return None
    if not partition.is_leader or partition.leader_epoch != epoch:
        raise NotLeader(f"this broker is no longer the leader of {partition.topic}-{partition.index}")
    for batch, header in split_batches(data):
        for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
            if record.offset == offset and not header.is_control:
                return record, header.compression
    return None


def _dead_letter_headers(record: BatchRecord, origin: DeadLetterOrigin, redriven: int) -> Headers:
    """Build the headers of a dead letter. A dedup id of the original message is kept under another name.

    A redriven message may die again in the same attempt, so the count of redrives is part of the dedup id."""
    own_id = f"{origin.subscription}/{origin.topic_id}/{origin.partition}/{origin.offset}/{origin.attempts}"
    values = {DEDUP_ID: f"{own_id}/{redriven}", REDRIVEN: str(redriven)} if redriven else {DEDUP_ID: own_id}
    headers = without(with_headers(with_dead_letter_headers(record.headers, origin), values), [DEAD_DEDUP_ID])
    dedup_id = header_value(record.headers, DEDUP_ID)
    return headers if dedup_id is None else [*headers, (DEAD_DEDUP_ID, dedup_id)]
