"""`AsyncClient`: queues, streams, requests and transactions of a Headrace cluster, for asyncio.

    async with AsyncClient("127.0.0.1:9092") as client:
        await client.publish("orders", {"id": 1}, key="c-42")
        async for message in client.subscribe("orders", "billing"):
            async with message:
                print(message.json())

- Connections are opened on first use. Retriable errors are retried with jittered back-off until `timeout`.
- Every error is a `HeadraceError` that says what was wrong.
- A client belongs to one event loop; `Client` is the synchronous counterpart, for threads.
- `stop` ends iterations over messages; closing the client releases its unsettled messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakSet

from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.admin.topic_admin import HIGH_WATERMARK, NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import Address, parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.connections.transport import Transport
from headrace.client.errors import Unreachable
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import ProducerSettings, Receipt
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.redrive import DeadLetter, RedriveOptions, RedriveResult
from headrace.client.queues.request_reply import Requests, Responder
from headrace.model.configs import Value
from headrace.model.errors import InvalidRequest, TopicAlreadyExists, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.runtime.clock import SystemClock
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.sdk.arguments import (
    check_choice,
    check_commit,
    check_count,
    check_handler,
    check_name,
    check_topic,
    config_texts,
    seek_position,
    start_position,
)
from headrace.sdk.errors import ClientClosed
from headrace.sdk.incoming import Reply
from headrace.sdk.messages import AsyncMessages, SubscribeOptions
from headrace.sdk.outgoing import Headers, NewMessage, encode_body, encode_key
from headrace.sdk.publishing import MessagePublisher
from headrace.sdk.streams import AsyncStream, Committing, Start
from headrace.sdk.subscription_state import Backlog, PeekedMessage, total_backlog
from headrace.sdk.times import Duration, Time, duration_seconds
from headrace.sdk.transaction import AsyncTransaction
from headrace.sdk.working import AsyncHandler, Handler, reply, run_handlers
from headrace.wire.batches import compression as codecs

log = logging.getLogger("headrace")

DEFAULT_ADDRESS = "127.0.0.1:9092"
ADDRESS_VARIABLE = "HEADRACE_SERVER"

Source = TypeVar("Source", AsyncMessages, AsyncStream)


class AsyncClient:
    """One client per process is enough: all tasks of its loop may share it.

    `address` lists bootstrap brokers, "host:port,host:port"; without it, the environment variable HEADRACE_SERVER does,
    else it is 127.0.0.1:9092. `timeout` is how long a call is retried. `create_topics`: publishing or subscribing to a
    topic that does not exist creates it. `compression`: none, gzip, snappy, lz4 or zstd. `cluster`: an existing cluster
    connection, over any transport, instead of an address.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        client_id: str = "headrace-sdk",
        timeout: Duration = 60.0,
        create_topics: bool = True,
        compression: str = "none",
        cluster: Cluster | None = None,
    ) -> None:
        seconds = duration_seconds(timeout)
        check_name("client_id", client_id)
        check_choice("compression", compression, codecs.NAMES.values())
        if cluster is None:
            settings = ClientSettings(client_id=client_id, deadline_seconds=seconds)
            dialer = TcpDialer(SystemNetwork(), client_id)
            cluster = _ReportingCluster(_bootstrap(address), dialer, SystemClock(), SystemEntropy(), settings)
        self._cluster = cluster
        self._publisher = MessagePublisher(
            cluster,
            ProducerSettings(
                compression=compression,
                delivery_timeout_seconds=seconds,
                topic_wait_seconds=seconds,
                create_topics=create_topics,
            ),
        )
        self._requests: Requests | None = None
        self._opening = asyncio.Lock()
        self._sources: WeakSet[AsyncMessages | AsyncStream] = WeakSet()
        self._is_stopped = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop(self) -> None:
        """Deliver no more messages: iterations end; `work` and `respond` return when their handlers have. Suitable for
        a signal handler: `loop.add_signal_handler(SIGTERM, client.stop)`. Publishing is possible until `close`."""
        self._is_stopped = True
        for source in list(self._sources):
            source.stop()

    async def close(self) -> None:
        """Stop, release unsettled messages, flush pending writes, and close the connections. Later calls raise
        `ClientClosed`."""
        self.stop()
        self._is_closed = True
        try:
            for source in list(self._sources):
                await (source.end() if isinstance(source, AsyncMessages) else source.close())
            if self._requests is not None:
                await self._requests.close()
            await self._publisher.close()
        finally:
            self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """The connections to the brokers."""
        self._check_open()
        return self._cluster

    # --- publishing ---

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        repeat: str | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
        tags: Iterable[str] = (),
        partition: int | None = None,
    ) -> Receipt:
        """Write one message; returns when every in-sync replica has it on disk.

        `value` is bytes, text, None, or a value with a JSON form: dicts, dataclasses, Structs, pydantic models.
        Messages with the same `key` stay in order. `delay` ("5m", seconds), `deliver_at` and `repeat` ("every 10s",
        or cron) deliver it later (docs/delays.md); `cancel` takes the receipt of such a message. `priority` (0 to 9),
        `ttl` and `tags` are used by subscriptions, `dedup_id` by topics with a dedup window (docs/queues.md).
        """
        message = NewMessage(
            value=value,
            key=key,
            headers=headers,
            delay=delay,
            deliver_at=deliver_at,
            repeat=repeat,
            priority=priority,
            ttl=ttl,
            dedup_id=dedup_id,
            tags=tags,
            partition=partition,
        )
        return await self._publishing.publish(topic, message)

    async def publish_many(self, topic: str, messages: Iterable[Any]) -> list[Receipt]:
        """Write many messages at once: values, or `NewMessage`s for messages with a key, headers or other options.

        Raises `PublishFailed` if any failed; it has the receipts of the others.
        """
        return await self._publishing.publish_many(topic, messages)

    async def cancel(self, receipt: Receipt | MessageId | str) -> None:
        """Cancel a delayed message, by its receipt or the id of that. Raises `InvalidRecordState` if it was already
        delivered or cancelled."""
        await self._publishing.cancel(receipt)

    def transaction(self, transactional_id: str, *, timeout: Duration = 60.0) -> AsyncTransaction:
        """A transaction, to be used as a context manager: the end commits, an exception aborts. `read_committed`
        readers see all of its writes or none. `headrace.sdk.transaction` explains the id."""
        return self._publishing.transaction(transactional_id, duration_seconds(timeout))

    # --- requests and replies ---

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timeout: Duration = 30.0,  # noqa: ASYNC109 - also sent with the request, as its time to live
    ) -> Reply:
        """Send a request to the topic's responders, and wait for the reply. Raises `RequestTimedOut`."""
        check_topic(topic)
        body, encoded = encode_body(value, headers)
        encoded_key = encode_key(key)
        requests = self._requests or await self._open_requests()
        found = await requests.request(
            topic, body, key=encoded_key, headers=encoded, timeout_seconds=duration_seconds(timeout)
        )
        return Reply(found.value, found.headers)

    async def respond(
        self,
        topic: str,
        subscription: str,
        handler: AsyncHandler | Handler,
        *,
        concurrency: int = 16,
    ) -> None:
        """Reply to requests with the result of the handler, until `stop`. Expired requests are skipped. A request whose
        handler raises is redelivered, like any message."""
        check_handler(handler)
        async with Responder(self.cluster) as responder:
            messages = self.subscribe(topic, subscription, prefetch=concurrency, concurrency=concurrency)
            await run_handlers(messages, handler, concurrency, partial(reply, responder, self.cluster.clock))

    # --- queues ---

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        start: Start = "earliest",
        prefetch: int = 10,
        concurrency: int | None = None,
        lease: Duration | None = None,
        max_work: Duration = "1h",
    ) -> AsyncMessages:
        """The messages of a subscription as they arrive, each leased to this client until it is settled.

        The first use creates the subscription, at the oldest message ("earliest") or at the end of the topic
        ("latest"). `prefetch` is the number of messages per lease request; use 1 for long work, so that other consumers
        get messages too. `concurrency` limits the unsettled messages; at the limit the iteration waits. `lease`
        overrides the lease time of the subscription, after which the messages of a crashed client are redelivered; a
        running client extends its leases for up to `max_work`.
        """
        check_topic(topic)
        check_name("subscription", subscription)
        if concurrency is not None:
            check_count("concurrency", concurrency)
        check_count("prefetch", prefetch)
        lease_seconds = None if lease is None else duration_seconds(lease)
        options = SubscribeOptions(
            start_position(start), prefetch, concurrency, lease_seconds, duration_seconds(max_work)
        )
        return self._opened(AsyncMessages(self.cluster, topic, subscription, options, self._publishing.ensure_topic))

    async def work(
        self,
        topic: str,
        subscription: str,
        handler: AsyncHandler | Handler,
        *,
        concurrency: int = 16,
        prefetch: int | None = None,
        start: Start = "earliest",
        lease: Duration | None = None,
        max_work: Duration = "1h",
    ) -> None:
        """Call the handler with every message, up to `concurrency` at a time, until `stop`.

        A return acks the message. An exception nacks it, to be redelivered after the subscription's back-off; `Retry`
        sets the delay, and `Reject` makes it a dead letter. A handler that is an ordinary function runs in a thread and
        gets a synchronous `Message`.
        """
        check_handler(handler)
        messages = self.subscribe(
            topic,
            subscription,
            start=start,
            prefetch=concurrency if prefetch is None else prefetch,
            concurrency=concurrency,
            lease=lease,
            max_work=max_work,
        )
        await run_handlers(messages, handler, concurrency)

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        start: Start = "earliest",
        configs: Mapping[str, Value] | None = None,
    ) -> None:
        """Create the subscription if it does not exist, and configure it; docs/queues.md lists the configs."""
        position, settings = start_position(start), config_texts(configs)
        check_name("subscription", subscription)
        await self._publishing.ensure_topic(topic)
        await SubscriptionAdmin(self.cluster).create(topic, subscription, position, settings)

    async def backlog(self, topic: str, subscription: str) -> Backlog:
        """The number of unsettled messages of the subscription."""
        check_topic(topic)
        check_name("subscription", subscription)
        return total_backlog(await SubscriptionAdmin(self.cluster).describe(subscription, [topic]))

    async def peek(self, topic: str, subscription: str, count: int = 10) -> list[PeekedMessage]:
        """Up to `count` unsettled messages, oldest first in each partition, without leasing them."""
        check_topic(topic)
        check_name("subscription", subscription)
        check_count("count", count)
        found: list[PeekedMessage] = []
        async with aclosing(SubscriptionAdmin(self.cluster).peek(topic, subscription)) as peeked:
            async for message in peeked:
                found.append(PeekedMessage(message))
                if len(found) == count:
                    break
        return found

    async def seek(self, topic: str, subscription: str, to: Start | Time) -> None:
        """Move the subscription to the oldest message ("earliest"), to the end ("latest") or to a time. Its leases end,
        and all messages after the position are delivered again, settled or not."""
        check_topic(topic)
        check_name("subscription", subscription)
        position = seek_position(to, self.cluster.clock.now_ms())
        await SubscriptionAdmin(self.cluster).seek(topic, subscription, position)

    async def dead_letters(self, topic: str) -> list[DeadLetter]:
        """The dead letters of the topic that were neither redriven nor discarded."""
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return []
        async with aclosing(queue.letters(with_settled=False)) as letters:
            return [letter async for letter, _ in letters]

    async def redrive(
        self, topic: str, letters: Iterable[DeadLetter] | None = None, *, to_all: bool = False
    ) -> RedriveResult:
        """Have the messages of these dead letters delivered again to the subscription in which they failed; of all
        letters of the topic if the argument is left out.

        The topic must still have the messages; the result lists those that could not be redriven. With `to_all`, copies
        are published to the topic, which all of its subscriptions receive."""
        selection = DeadLetterSelection(ids=None if letters is None else _letter_ids(letters))
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return RedriveResult()
        return await queue.redrive(selection, RedriveOptions(to_all=to_all))

    async def discard(self, topic: str, letters: Iterable[DeadLetter]) -> RedriveResult:
        """Settle these dead letters without sending them back."""
        selection = DeadLetterSelection(ids=_letter_ids(letters))
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return RedriveResult()
        return await queue.discard(selection)

    # --- streams and topics ---

    def consume(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        commit: Committing = "auto",
    ) -> AsyncStream:
        """The records of topics, in order per partition; the members of a group share the partitions.
        `headrace.sdk.streams` explains when a record counts as processed."""
        names = _topic_names(topics)
        start_position(start)
        check_commit(commit)
        if group is not None:
            check_name("group", group)
        return self._opened(AsyncStream(self.cluster, names, group, start, commit))

    async def lag(self, group: str) -> dict[str, int]:
        """The number of records of each topic that the group has not read yet, by its committed offsets."""
        check_name("group", group)
        lags: dict[str, int] = {}
        for one in await GroupAdmin(self.cluster).lag(group):
            lags[one.target.topic] = lags.get(one.target.topic, 0) + one.lag
        return lags

    async def topics(self) -> list[str]:
        """The names of all topics, without internal ones."""
        return [topic.name for topic in await TopicAdmin(self.cluster).list() if not topic.internal]

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, configs: Mapping[str, Value] | None = None
    ) -> bool:
        """Create the topic; False if it exists already, which leaves it as it is."""
        check_topic(topic)
        if partitions is not None:
            check_count("partitions", partitions)
        try:
            await TopicAdmin(self.cluster).create(NewTopic(topic, partitions or -1, configs=config_texts(configs)))
        except TopicAlreadyExists:
            return False
        return True

    async def delete_topic(self, topic: str) -> bool:
        """Delete the topic with its messages, subscriptions and dead letters; False if it does not exist."""
        check_topic(topic)
        admin = TopicAdmin(self.cluster)
        try:
            await admin.describe(topic)
            await SubscriptionAdmin(self.cluster).clear_group_configs(topic)
            await admin.delete(topic)
        except UnknownTopicOrPartition:
            return False
        return True

    async def purge(self, topic: str) -> None:
        """Delete all messages that the topic has now, for all subscriptions and streams. To empty one subscription
        only, `seek` it to "latest"."""
        check_topic(topic)
        admin = TopicAdmin(self.cluster)
        view = await admin.describe(topic)
        targets = [TopicPartition(topic, partition.partition) for partition in view.partitions]
        await admin.trim(dict.fromkeys(targets, HIGH_WATERMARK))

    # --- inside ---

    @property
    def _publishing(self) -> MessagePublisher:
        self._check_open()
        return self._publisher

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    def _opened(self, source: Source) -> Source:
        self._sources.add(source)
        if self._is_stopped:
            source.stop()
        return source

    async def _dead_letter_queue(self, topic: str) -> DeadLetterQueue | None:
        """None if the topic has no dead letters yet."""
        check_topic(topic)
        queue = DeadLetterQueue(self.cluster, topic)
        try:
            await self.cluster.call_with_retries(lambda: self.cluster.topic(queue.name))
        except UnknownTopicOrPartition:
            return None
        return queue

    async def _open_requests(self) -> Requests:
        async with self._opening:
            if self._requests is None:
                requests = Requests(self.cluster)
                await requests.__aenter__()
                self._requests = requests
        return self._requests


class _ReportingCluster(Cluster):
    """Logs the begin and the end of an outage, and adds to the error what to do when no broker is reachable."""

    _is_outage = False

    async def any_transport(self) -> Transport:
        try:
            transport = await super().any_transport()
        except Unreachable as error:
            if not self._is_outage:
                self._is_outage = True
                log.warning("no broker is reachable, will retry error=%r", error.message)
            raise Unreachable(
                f"{error.message}; start a broker with `headrace serve`, or give the client another address"
            ) from error
        if self._is_outage:
            self._is_outage = False
            log.info("brokers are reachable again broker=%s", transport.peer)
        return transport


def _bootstrap(address: str | None) -> Sequence[Address]:
    text = address if address is not None else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if not isinstance(text, str):
        raise InvalidRequest(f"address={text!r} is not valid; write a text such as {DEFAULT_ADDRESS!r}")
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise InvalidRequest(f"the address of the brokers is not valid: {error}") from None


def _topic_names(topics: object) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else []
    if not names:
        raise InvalidRequest(f"topics={topics!r} is not valid; use the name of a topic, or a list of names")
    for name in names:
        check_topic(name)
    return names


def _letter_ids(letters: Iterable[DeadLetter]) -> list[MessageId]:
    found = list(letters) if isinstance(letters, Iterable) else [letters]
    if not all(isinstance(letter, DeadLetter) for letter in found):
        raise InvalidRequest(f"letters={letters!r} is not valid; use a list of what `dead_letters` returns")
    return [letter.id for letter in found]
