"""Publish messages, one or many at once, through one producer or in a transaction.

A receipt means that the message is on the disk of every in-sync replica. Retriable errors are retried with jittered
back-off until the client's timeout; the producer's sequence numbers keep a retry from being stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicView
from headrace.client.produce.partitioner import partition_for_key
from headrace.client.produce.producer import Delivery, Producer, ProducerSettings, Receipt
from headrace.client.queues.schedule import Schedule, topic_of
from headrace.client.transactions.transactional_producer import TransactionalProducer, TransactionSettings
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.model.ids import MessageId, message_id_from_text
from headrace.sdk.arguments import check_name, check_topic
from headrace.sdk.errors import PublishFailed
from headrace.sdk.outgoing import NewMessage, OutgoingMessage, outgoing_message
from headrace.sdk.transaction import AsyncTransaction


class MessagePublisher:
    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._producer: Producer | None = None
        self._start_lock = asyncio.Lock()
        self._transactional: dict[tuple[str, float], tuple[TransactionalProducer, asyncio.Lock]] = {}

    async def publish(self, topic: str, message: NewMessage) -> Receipt:
        return await (await self._submit(outgoing_message(topic, message)))

    async def publish_many(self, topic: str, messages: Iterable[Any]) -> list[Receipt]:
        """Raises `PublishFailed` unless all messages are written."""
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise InvalidRequest(f"messages={messages!r} is not valid; use a list of values, or `publish` for one")
        deliveries: list[Delivery | HeadraceError] = []
        for message in messages:
            new = message if isinstance(message, NewMessage) else NewMessage(value=message)
            try:
                deliveries.append(await self._submit(outgoing_message(topic, new)))
            except HeadraceError as error:
                deliveries.append(error)
        receipts: list[Receipt | None] = []
        failures: dict[int, HeadraceError] = {}
        for index, delivery in enumerate(deliveries):
            receipts.append(None)
            if isinstance(delivery, HeadraceError):
                failures[index] = delivery
                continue
            try:
                receipts[index] = await delivery
            except HeadraceError as error:
                failures[index] = error
        if failures:
            raise PublishFailed(receipts, failures)
        return [receipt for receipt in receipts if receipt is not None]

    async def cancel(self, receipt: Receipt | MessageId | str) -> None:
        message_id = _id_of(receipt)
        await Schedule(self._cluster, topic_of(message_id)).cancel(message_id)

    def transaction(self, transactional_id: str, timeout_seconds: float) -> AsyncTransaction:
        check_name("transactional_id", transactional_id)
        key = transactional_id, timeout_seconds
        if key not in self._transactional:
            settings = TransactionSettings(timeout_seconds, self._settings)
            producer = TransactionalProducer(self._cluster, transactional_id, settings)
            self._transactional[key] = producer, asyncio.Lock()
        return AsyncTransaction(*self._transactional[key], self._submit_to)

    async def ensure_topic(self, topic: str) -> None:
        """Create the topic if it does not exist and the client may create topics; else raise."""
        check_topic(topic)
        await self._topic(topic, create=self._settings.create_topics)

    async def _choose_partition(self, message: OutgoingMessage) -> int | None:
        """The partition, unless the key determines it. Creates the topic for delayed messages if necessary."""
        if message.delayed_for is not None and message.topic not in self._cluster.view.topics:
            await self.ensure_topic(message.delayed_for)
            await self._topic(message.topic, create=True)
        if message.partitioning_key is None or message.partition is not None:
            return message.partition
        view = await self._topic(message.topic, create=self._settings.create_topics)
        return partition_for_key(message.partitioning_key, len(view.partitions))

    async def close(self) -> None:
        for producer, _ in self._transactional.values():
            await producer.close()
        self._transactional.clear()
        if self._producer is not None:
            await self._producer.close()

    async def _submit(self, message: OutgoingMessage) -> Delivery:
        return await self._submit_to(self._producer or await self._start_producer(), message)

    async def _submit_to(self, producer: Producer | TransactionalProducer, message: OutgoingMessage) -> Delivery:
        return await producer.submit(
            message.topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=await self._choose_partition(message),
        )

    async def _topic(self, topic: str, *, create: bool) -> TopicView:
        return await self._cluster.wait_for_topic(topic, self._settings.topic_wait_seconds, create=create)

    async def _start_producer(self) -> Producer:
        async with self._start_lock:
            if self._producer is None:
                producer = Producer(self._cluster, self._settings)
                await producer.__aenter__()
                self._producer = producer
        return self._producer


def _id_of(receipt: Receipt | MessageId | str) -> MessageId:
    if isinstance(receipt, str):
        return message_id_from_text(receipt)
    if isinstance(receipt, Receipt | MessageId):
        return MessageId(*receipt)
    raise InvalidRequest(f"receipt={receipt!r} is not valid; use the receipt of `publish`, or its id as text")
