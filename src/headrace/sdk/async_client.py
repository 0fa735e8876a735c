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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar
from weakref import WeakSet

from headrace.client.admin.subscription_admin import END, START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.connections.transport import Transport
from headrace.client.errors import Unreachable
from headrace.client.produce.producer import ProducerSettings, Receipt
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.redrive import DeadLetter, RedriveOptions, RedriveResult
from headrace.client.queues.request_reply import Requests, Responder
from headrace.model.errors import InvalidRequest, TopicAlreadyExists, UnknownTopicOrPartition
from headrace.runtime.clock import SystemClock
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.sdk.incoming import Reply
from headrace.sdk.messages import AsyncMessages, SubscribeOptions
from headrace.sdk.outgoing import Headers, NewMessage, encode_body, encode_key
from headrace.sdk.publishing import MessagePublisher
from headrace.sdk.streams import AsyncStream, Committing, Start
from headrace.sdk.times import Duration, Time, duration_seconds
from headrace.sdk.transaction import AsyncTransaction
from headrace.sdk.working import AsyncHandler, Handler, RequestReplier, run_handlers

DEFAULT_ADDRESS = "127.0.0.1:9092"

Source = TypeVar("Source", AsyncMessages, AsyncStream)


class AsyncClient:
    """One client per process is enough: all tasks of its loop may share it.

    `address` lists bootstrap brokers, "host:port,host:port". `timeout` is how long a call is retried. `create_topics`:
    publishing or subscribing to a topic that does not exist creates it. `compression`: none, gzip, snappy, lz4 or zstd.
    `cluster`: an existing cluster connection, over any transport, instead of an address.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        client_id: str = "headrace-sdk",
        timeout: Duration = 60.0,
        create_topics: bool = True,
        compression: str = "none",
        cluster: Cluster | None = None,
    ) -> None:
        seconds = duration_seconds(timeout)
        if cluster is None:
            settings = ClientSettings(client_id=client_id, deadline_seconds=seconds)
            dialer = TcpDialer(SystemNetwork(), client_id)
            cluster = _ExplainingCluster(parse_addresses(address), dialer, SystemClock(), SystemEntropy(), settings)
        self.cluster = cluster
        self._publishing = MessagePublisher(
            self.cluster,
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
        """Stop, release unsettled messages, flush pending writes, and close the connections."""
        self.stop()
        try:
            for source in list(self._sources):
                await (source.end() if isinstance(source, AsyncMessages) else source.close())
            if self._requests is not None:
                await self._requests.close()
            await self._publishing.close()
        finally:
            self.cluster.close()

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

    async def cancel(self, receipt: Receipt) -> None:
        """Cancel a delayed message. Raises `InvalidRecordState` if it was already delivered or cancelled."""
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
        body, encoded = encode_body(value, headers)
        requests = self._requests or await self._open_requests()
        reply = await requests.request(
            topic,
            body,
            key=encode_key(key),
            headers=encoded,
            timeout_seconds=duration_seconds(timeout),
        )
        return Reply(reply.value, reply.headers)

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
        async with Responder(self.cluster) as responder:
            messages = self.subscribe(topic, subscription, prefetch=concurrency, concurrency=concurrency)
            await run_handlers(messages, handler, concurrency, RequestReplier(responder, self.cluster.clock))

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
        if prefetch < 1 or (concurrency is not None and concurrency < 1):
            raise InvalidRequest("prefetch and concurrency are at least 1")
        lease_seconds = None if lease is None else duration_seconds(lease)
        options = SubscribeOptions(start, prefetch, concurrency, lease_seconds, duration_seconds(max_work))
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
        messages = self.subscribe(
            topic,
            subscription,
            start=start,
            prefetch=prefetch or concurrency,
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
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create the subscription if it does not exist, and configure it; docs/queues.md lists the configs."""
        await self._publishing.ensure_topic(topic)
        position = Position(START if start == "earliest" else END)
        await SubscriptionAdmin(self.cluster).create(topic, subscription, position, configs)

    async def dead_letters(self, topic: str) -> list[DeadLetter]:
        """The dead letters of the topic that were neither redriven nor discarded."""
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return []
        async with aclosing(queue.letters(with_settled=False)) as letters:
            return [letter async for letter, _ in letters]

    async def redrive(self, topic: str, letters: Sequence[DeadLetter] = (), *, to_all: bool = False) -> RedriveResult:
        """Have the messages of these dead letters, or of all, delivered again to the subscription in which they failed.

        The topic must still have the messages; the result lists those that could not be redriven. With `to_all`, copies
        are published to the topic, which all of its subscriptions receive."""
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return RedriveResult()
        selection = DeadLetterSelection(ids=[letter.id for letter in letters])
        return await queue.redrive(selection, RedriveOptions(to_all=to_all))

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
        names = [topics] if isinstance(topics, str) else list(topics)
        return self._opened(AsyncStream(self.cluster, names, group, start, commit))

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Create the topic; False if it exists already, which leaves it as it is."""
        try:
            await TopicAdmin(self.cluster).create(NewTopic(topic, partitions or -1, configs=configs or {}))
        except TopicAlreadyExists:
            return False
        return True

    # --- inside ---

    def _opened(self, source: Source) -> Source:
        self._sources.add(source)
        if self._is_stopped:
            source.stop()
        return source

    async def _dead_letter_queue(self, topic: str) -> DeadLetterQueue | None:
        """None if the topic has no dead letters yet."""
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


class _ExplainingCluster(Cluster):
    """Adds to the error what to do when no broker is reachable."""

    async def any_transport(self) -> Transport:
        try:
            return await super().any_transport()
        except Unreachable as error:
            raise Unreachable(
                f"{error.message}; start a broker with `headrace serve`, or give the client another address"
            ) from error
