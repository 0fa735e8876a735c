"""Dead letters: what nobody could work on is copied to `<topic>.dlq`, with the reasons, and stays there.

The copy has the message's key, value and headers; `headrace-dead-*` say where it comes from and why. It is appended as
any producer's message is, wherever the dead-letter topic is led, and has a dedup id of its own, so that a copy that is
made again after a crash is stored once. The topic is made with the first dead letter: one partition, as many replicas
as the topic has, kept until somebody has settled it. A dead letter that nobody could work on is not copied again.

Names of topics are given again, so a dead letter says the id of its topic, and a dead-letter topic that is made here is
deleted with the topic that it is made for (decision 029).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.partition import Partition
from headrace.broker.peers import Peers
from headrace.broker.topic import Topic
from headrace.model.errors import NotLeader, OffsetOutOfRange, TopicAlreadyExists, UnknownTopicId
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEDUP_ID,
    Death,
    Headers,
    header_of,
    with_death,
    with_headers,
    without,
)
from headrace.model.message_ids import MessageId
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic
from headrace.model.topic_configs import DAY_MS
from headrace.registry.topics import topic_key
from headrace.runtime.clock import Clock
from headrace.storage.reading import LogSlice
from headrace.wire.batch import HEADER_SIZE, Record, build_batch, parse_header, read_records
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

log = logging.getLogger(__name__)

_PARTITIONS = 1  # dead letters are few, and are looked at together
_DEDUP_WINDOW_MS = DAY_MS  # longer than any crash keeps a partition from being led
_REASON_LENGTH_MAX = 4096
_ROOM_BYTES = 1 << 20  # for headers, and for what packing one message alone may cost more than packing many
_UNPACKED_BYTES_MAX = 256 << 20
_TIMEOUT_SECONDS = 10.0
_LANE = "dead letters"
_ACKS_ALL = -1
_VERSION = 13  # by id: the name may be another topic's by the time that the leader has it

Handle = Callable[[ProduceRequest, RequestContext], Awaitable[ProduceResponse | None]]


class DeadLetters:
    """`produce` is the broker's own handler."""

    def __init__(self, catalogue: Catalogue, produce: Handle, peers: Peers, clock: Clock) -> None:
        self._catalogue = catalogue
        self._produce = produce
        self._peers = peers
        self._clock = clock

    async def bury(self, topic: str, index: int, offset: int, subscription: str, attempts: int, reason: str) -> None:
        """Return when the copy of a message of a partition that is led here is committed. Raises whatever keeps it
        from that; then it is to be tried again."""
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
        source = self._catalogue.topic(topic)  # before the first wait: later the name may be another topic's
        found = await _read(self._catalogue.partition(topic, index), offset)
        if found is None:
            return  # retention or compaction was faster: there is nothing to keep
        record, compression = found
        now_ms = self._clock.now_ms()
        death = Death(reason[:_REASON_LENGTH_MAX], attempts, subscription, topic, index, offset, now_ms, source.id)
        copy = Record(record.key, record.value, _headers(record, death), now_ms)
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
            "max.message.bytes": str(min(topic.config.max_message_bytes + _ROOM_BYTES, 2**31 - 1)),
            "min.insync.replicas": str(topic.config.min_insync_replicas),
            "retention.bytes": "-1",
            "retention.mode": "acked",
            "retention.ms": "-1",
        }
        replication = max(min(topic.replication, len(self._catalogue.usable_brokers())), 1)
        with suppress(TopicAlreadyExists):  # made for another message while this one waited
            await self._catalogue.create(name, _PARTITIONS, configs, replication=replication, dead_letters_of=topic)
        return self._catalogue.topic(name)

    async def _write(self, topic: Topic, index: int, batch: bytearray) -> None:
        from headrace.client.errors import only, raise_for  # no broker needs it before something has died

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
            response = await self._produce(request, _own_context())
        else:
            leader = self._catalogue.leader_node(topic.name, index)
            if leader is None:
                raise NotLeader(f"partition {topic.name}-{index} has no leader")
            response = await self._peers.call(
                leader.node_id, request, timeout_seconds=_TIMEOUT_SECONDS, lane=_LANE, version_max=_VERSION
            )
        assert response is not None
        answer = only(only(response.responses).partition_responses)
        raise_for(answer.error_code, answer.error_message)


async def _read(partition: Partition, offset: int) -> tuple[Record, int] | None:
    """The message at an offset and the compression of its batch. None if retention or compaction has removed it.

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


def _headers(record: Record, death: Death) -> Headers:
    """The message may have had a dedup id already; that one is kept under another name."""
    own_id = f"{death.subscription}/{death.topic_id}/{death.partition}/{death.offset}/{death.attempts}"
    headers = without(with_headers(with_death(record.headers, death), {DEDUP_ID: own_id}), [DEAD_DEDUP_ID])
    given = header_of(record.headers, DEDUP_ID)
    return headers if given is None else [*headers, (DEAD_DEDUP_ID, given)]


def _own_context() -> RequestContext:
    return RequestContext(_VERSION, _LANE, "", "", lambda _is_held: None, lambda: None)
