"""`Client`: what `AsyncClient` does, without `await`, for programs with threads or without any.

    with Client("127.0.0.1:9092") as client:
        client.publish("orders", {"id": 1}, key="c-42")
        for message in client.subscribe("orders", "billing"):
            with message:
                print(message.json())

Its loop runs in a thread of its own, so that leases are extended while a handler blocks. All methods may be called from
any thread. Use it after a fork, not over one.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakSet

from headrace.client.produce.producer import Receipt
from headrace.client.queues.redrive import DeadLetter, RedriveResult
from headrace.sdk.async_client import DEFAULT_ADDRESS, AsyncClient
from headrace.sdk.incoming import Reply
from headrace.sdk.loop_thread import LoopThread
from headrace.sdk.outgoing import Headers
from headrace.sdk.streams import Committing, Start
from headrace.sdk.sync_messages import Messages, Stream, Transaction
from headrace.sdk.times import Duration, Time
from headrace.sdk.working import AsyncHandler, Handler

T = TypeVar("T")

_running: WeakSet[Client] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Who ends without closing gives back his messages all the same."""
    for client in list(_running):
        client.close()


class Client:
    """See `AsyncClient` for what the parameters mean, here and everywhere below."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        client_id: str = "headrace-sdk",
        timeout: Duration = 60.0,
        create_topics: bool = True,
        compression: str = "none",
    ) -> None:
        self._client = AsyncClient(
            address, client_id=client_id, timeout=timeout, create_topics=create_topics, compression=compression
        )
        self._starting = threading.Lock()
        self._running: LoopThread | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Hand out no more messages; returns at once. Good for a signal: `signal.signal(SIGTERM, lambda *_:
        client.stop())`."""
        running = self._running
        if running is not None:
            running.post(self._client.stop)

    def close(self) -> None:
        """Stop, give back what is not settled, write what is on its way, and close the connections."""
        with self._starting:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            try:
                running.call(self._client.close())
            finally:
                running.stop()

    # --- publishing ---

    def publish(
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
        """Write one message; returns when it is on disk, wherever it has to be."""
        return self._call(
            self._client.publish(
                topic,
                value,
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
        )

    def publish_many(self, topic: str, messages: Iterable[Any]) -> list[Receipt]:
        """Write many at once: values, or `NewMessage`s. Raises `PublishFailed` if some failed."""
        return self._call(self._client.publish_many(topic, messages))

    def cancel(self, receipt: Receipt) -> None:
        """Let a message not come that was published with a delay."""
        self._call(self._client.cancel(receipt))

    def transaction(self, transactional_id: str, *, timeout: Duration = 60.0) -> Transaction:
        """`with client.transaction("payments-1") as tx:` commits at the end and aborts on an exception."""
        begin = partial(self._client.transaction, transactional_id, timeout=timeout)
        return Transaction(self._loop.run(begin), self._loop)

    # --- requests and replies ---

    def request(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timeout: Duration = 30.0,
    ) -> Reply:
        """Ask whoever answers requests in this topic, and wait for the reply. Raises `RequestTimedOut`."""
        return self._call(self._client.request(topic, value, key=key, headers=headers, timeout=timeout))

    def respond(self, topic: str, subscription: str, handler: AsyncHandler | Handler, *, concurrency: int = 16) -> None:
        """Answer requests with what the handler returns, until `stop`."""
        self._call(self._client.respond(topic, subscription, handler, concurrency=concurrency))

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
    ) -> Messages:
        """The messages of a subscription, as they come: each is this client's until it is settled."""
        subscribe = partial(
            self._client.subscribe,
            topic,
            subscription,
            start=start,
            prefetch=prefetch,
            concurrency=concurrency,
            lease=lease,
            max_work=max_work,
        )
        return Messages(self._loop.run(subscribe), self._loop)

    def work(
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
        """Call the handler with every message, so many at a time, each in a thread of its own, until `stop`."""
        self._call(
            self._client.work(
                topic,
                subscription,
                handler,
                concurrency=concurrency,
                prefetch=prefetch,
                start=start,
                lease=lease,
                max_work=max_work,
            )
        )

    def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        start: Start = "earliest",
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Make it, if it is not there, and configure it."""
        self._call(self._client.create_subscription(topic, subscription, start=start, configs=configs))

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Those of the topic's messages that nobody could work on, and that were neither sent back nor discarded."""
        return self._call(self._client.dead_letters(topic))

    def redrive(self, topic: str, letters: Sequence[DeadLetter] = ()) -> RedriveResult:
        """Send dead letters back to where they come from: these, or all."""
        return self._call(self._client.redrive(topic, letters))

    # --- streams and topics ---

    def consume(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        commit: Committing = "auto",
    ) -> Stream:
        """The records of topics in the order of their partitions; with a group its members share them."""
        consume = partial(self._client.consume, topics, group=group, start=start, commit=commit)
        return Stream(self._loop.run(consume), self._loop)

    def create_topic(
        self, topic: str, *, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Make it; False if it is there already, as it is."""
        return self._call(self._client.create_topic(topic, partitions=partitions, configs=configs))

    # --- inside ---

    @property
    def _loop(self) -> LoopThread:
        running = self._running
        if running is None:
            with self._starting:
                if self._is_closed:
                    raise RuntimeError("this client is closed")
                if self._running is None:
                    self._running = LoopThread("headrace-client")
                    _running.add(self)
                running = self._running
        return running

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.call(coroutine)
