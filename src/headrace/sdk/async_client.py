"""`AsyncClient`: streams, queues, requests and transactions of a Headrace cluster, for asyncio.

    async with AsyncClient("127.0.0.1:9092") as client:
        await client.publish("orders", {"id": 1}, key="c-42")
        async for message in client.subscribe("orders", "billing"):
            async with message:
                print(message.json())

Nothing is sent before it is needed, and everything that fails for a while is tried again, with jittered back-off, until
`timeout`. Every error is a `HeadraceError` that says what was wrong. Use it on one loop; `Client` is its twin for
threads. `stop` ends what waits for messages; leaving the client gives back what is not settled.
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
from headrace.client.queues.redrive import DeadLetter, RedriveResult
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
    """One per process will do: it may be shared by all tasks of its loop.

    `address` names brokers to begin with, "host:port,host:port"; the others are found through them. `timeout` is how
    long a call is tried again. `create_topics`: whether topics are made by the first who publishes or subscribes to
    them. `compression`: none, gzip, snappy, lz4 or zstd. `cluster`: one that is there already, over whichever
    transport, instead of an address.
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
        """Hand out no more messages: iterations end, `work` and `respond` return when their handlers have. Good for a
        signal: `loop.add_signal_handler(SIGTERM, client.stop)`. Publishing goes on until `close`."""
        self._is_stopped = True
        for source in list(self._sources):
            source.stop()

    async def close(self) -> None:
        """Stop, give back what is not settled, write what is on its way, and close the connections."""
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
        """Write one message; returns when it is on disk, wherever it has to be.

        `value` is bytes, text, None, or anything that JSON can say: dicts, dataclasses, Structs, pydantic models.
        Messages with the same `key` stay in order. `delay` ("5m", seconds), `deliver_at` and `repeat` ("every 10s",
        or cron) let it come later: see docs/delays.md; such a receipt can be given to `cancel`. `priority` (0 to 9),
        `ttl` and `tags` are for subscriptions that look at them, `dedup_id` for topics with a window: see
        docs/queues.md.
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
        """Write many at once: values, or `NewMessage`s where they need more than a value.

        Raises `PublishFailed` if some failed; it has the receipts of the others.
        """
        return await self._publishing.publish_many(topic, messages)

    async def cancel(self, receipt: Receipt) -> None:
        """Let a message not come that was published with a delay. Raises `InvalidRecordState` if it is too late."""
        await self._publishing.cancel(receipt)

    def transaction(self, transactional_id: str, *, timeout: Duration = 60.0) -> AsyncTransaction:
        """`async with client.transaction("payments-1") as tx:` commits at the end and aborts on an exception. Readers
        see all of it or nothing. See `headrace.sdk.transaction` for what the id means."""
        return self._publishing.transaction(transactional_id, duration_seconds(timeout))

    # --- requests and replies ---

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timeout: Duration = 30.0,  # noqa: ASYNC109 - the request carries it, for whoever answers
    ) -> Reply:
        """Ask whoever answers requests in this topic, and wait for the reply. Raises `RequestTimedOut`."""
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
        """Answer requests with what the handler returns, until `stop`. A request whose time is over is left out; one
        whose handler raises comes again, like any message."""
        async with Responder(self.cluster) as responder:
            messages = self.subscribe(topic, subscription, prefetch=concurrency, concurrency=concurrency)
            answering = RequestReplier(responder, self.cluster.clock)
            await run_handlers(messages, handler, concurrency, answering)

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
        """The messages of a subscription, as they come: each is this client's until it is settled.

        The subscription is made on first use: it begins with the oldest message ("earliest"), or with what comes from
        now on ("latest"). `prefetch` is how many messages are taken at once; take 1 for long work, so that others get
        theirs. `concurrency` is how many may be in hand unsettled before the iteration waits. `lease` is how long after
        a crash of this client its messages come back, if not as the subscription is configured; while it lives, it
        extends them for up to `max_work`.
        """
        if prefetch < 1 or (concurrency is not None and concurrency < 1):
            raise InvalidRequest("prefetch and concurrency are at least 1")
        lease_seconds = None if lease is None else duration_seconds(lease)
        how = SubscribeOptions(start, prefetch, concurrency, lease_seconds, duration_seconds(max_work))
        return self._opened(AsyncMessages(self.cluster, topic, subscription, how, self._publishing.ensure_topic))

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
        """Call the handler with every message, so many at a time, until `stop`.

        A return acks; an exception gives the message back, to come again after the subscription's back-off; `Retry`
        and `Reject` say more. An ordinary function runs in a thread, with the sync twin of the message.
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
        """Make it, if it is not there, and configure it: see docs/queues.md for the names."""
        await self._publishing.ensure_topic(topic)
        position = Position(START if start == "earliest" else END)
        await SubscriptionAdmin(self.cluster).create(topic, subscription, position, configs)

    async def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Those of the topic's messages that nobody could work on, and that were neither sent back nor discarded."""
        queue = await self._dead_letter_queue(topic)
        if queue is None:
            return []
        async with aclosing(queue.letters(with_settled=False)) as letters:
            return [letter async for letter, _ in letters]

    async def redrive(self, topic: str, letters: Sequence[DeadLetter] = ()) -> RedriveResult:
        """Send dead letters back to where they come from: these, or all."""
        queue = await self._dead_letter_queue(topic)
        return (
            RedriveResult()
            if queue is None
            else await queue.redrive(DeadLetterSelection(ids=[letter.id for letter in letters]))
        )

    # --- streams and topics ---

    def consume(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        commit: Committing = "auto",
    ) -> AsyncStream:
        """The records of topics in the order of their partitions, for as long as you like; with a group its members
        share them. See `headrace.sdk.streams` for when a record counts as done."""
        names = [topics] if isinstance(topics, str) else list(topics)
        return self._opened(AsyncStream(self.cluster, names, group, start, commit))

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Make it; False if it is there already, as it is."""
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
        """None as long as nothing has died."""
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
    """Says what to do when there is no broker."""

    async def any_transport(self) -> Transport:
        try:
            return await super().any_transport()
        except Unreachable as error:
            raise Unreachable(
                f"{error.message}; start a broker with `headrace serve`, or give the client another address"
            ) from error
