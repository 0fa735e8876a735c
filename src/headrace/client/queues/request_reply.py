"""Request and reply over topics: `await requests.request("prices", b"c-42")` returns the reply of a consumer.

    async with Requests(cluster) as requests:
        reply = await requests.request("prices", b"c-42", timeout_seconds=5)

    async with Responder(cluster) as responder, Consumer(cluster, ["prices"], group=...) as consumer:
        await responder.answer(consumer, price_of)

- The headers of a request name the topic of the reply and a correlation id. Each `Requests` has its own reply topic and
  deletes it in `close`. If the client disappears, the broker deletes the topic after it has been idle for long enough.
- Late and duplicate replies are ignored. A request carries its expiry time, so that a subscription that honours it does
  not work on a request whose sender has given up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Header, Producer, ProducerSettings
from headrace.model.errors import HeadraceError, RequestTimedOut, UnknownTopicOrPartition
from headrace.model.message_headers import (
    CORRELATION_ID,
    EXPIRES_AT,
    REPLY_TO,
    InvalidHeader,
    header_text,
    header_value,
    with_headers,
)
from headrace.runtime.tasks import Supervisor, wait_until_set

REPLY_PREFIX = "__reply."
_NOT_OF_NAMES = re.compile(r"[^a-zA-Z0-9._-]")
_CLIENT_ID_LENGTH_MAX = 100
_GONE_SECONDS = 2.0  # a reply topic that is missing for this long counts as deleted
_KEPT_ALIVE = 3  # times per idle period, so that a single miss is harmless


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """`idle_seconds`: how long the reply topic of a client that disappeared is kept."""

    idle_seconds: float = 3600.0
    timeout_seconds: float = 30.0


class ReplyMessage(NamedTuple):
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Requests:
    """Sends requests and receives their replies. Use it as `async with Requests(cluster) as requests:`."""

    def __init__(self, cluster: Cluster, settings: RequestSettings | None = None) -> None:
        self.settings = settings or RequestSettings()
        client_id = _NOT_OF_NAMES.sub("-", cluster.settings.client_id)[:_CLIENT_ID_LENGTH_MAX]
        self.reply_topic = f"{REPLY_PREFIX}{client_id}.{cluster.entropy.token(12)}"
        self._cluster = cluster
        self._admin = TopicAdmin(cluster)
        self._producer = Producer(cluster)
        self._consumer = Consumer(cluster, partitions={TopicPartition(self.reply_topic, 0): 0})
        self._waiting: dict[bytes, asyncio.Future[ReplyMessage]] = {}
        self._failure: HeadraceError | None = None
        self._has_timed_out = asyncio.Event()  # perhaps because the reply topic was deleted
        self._tasks = Supervisor()

    async def __aenter__(self) -> Self:
        await self._create_reply_topic()
        await self._producer.__aenter__()
        await self._consumer.__aenter__()
        self._tasks.spawn(self._receive_replies(), "replies")
        self._tasks.spawn(self._keep_alive(), "keep the reply topic")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Fail the pending requests, and delete the reply topic."""
        await self._tasks.stop()
        self._fail(RequestTimedOut("the requests were closed before the reply came"))
        await self._consumer.close()
        await self._producer.close(flush=False)
        with suppress(HeadraceError):  # the broker deletes the topic when it has been idle
            await self._admin.delete(self.reply_topic)

    async def request(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        timeout_seconds: float | None = None,
    ) -> ReplyMessage:
        """Write a request and wait for its reply; raises `RequestTimedOut` if none arrives in time."""
        if self._failure is not None:
            raise self._failure
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        correlation_id = self._cluster.entropy.token(16)
        ours = {
            REPLY_TO: self.reply_topic,
            CORRELATION_ID: correlation_id,
            EXPIRES_AT: str(self._cluster.clock.now_ms() + int(seconds * 1000)),
        }
        future: asyncio.Future[ReplyMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id.encode()] = future
        try:
            async with asyncio.timeout(seconds):
                await self._producer.publish(topic, value, key=key, headers=with_headers(tuple(headers), ours))
                return await future
        except TimeoutError:
            self._has_timed_out.set()
            raise RequestTimedOut(f"no reply to a request in {topic} within {seconds:g} s") from None
        finally:
            del self._waiting[correlation_id.encode()]

    async def _receive_replies(self) -> None:
        try:
            async for record in self._consumer:
                future = self._waiting.get(header_value(record.headers, CORRELATION_ID) or b"")
                if future is not None and not future.done():
                    future.set_result(ReplyMessage(record.value, record.headers))
        except HeadraceError as error:
            self._fail(error)

    async def _keep_alive(self) -> None:
        while True:
            await wait_until_set(self._has_timed_out, self.settings.idle_seconds / _KEPT_ALIVE)
            self._has_timed_out.clear()
            await self._restore_reply_topic()
            with suppress(HeadraceError):  # retried in the next period
                await self._producer.publish(self.reply_topic, None)

    async def _create_reply_topic(self) -> None:
        idle_ms = int(self.settings.idle_seconds * 1000)
        configs = {"expire.after.idle.ms": str(idle_ms), "retention.ms": str(idle_ms), "cleanup.policy": "delete"}
        await self._admin.create(NewTopic(self.reply_topic, partitions=1, configs=configs))

    async def _restore_reply_topic(self) -> None:
        """Create the topic again if it has expired while this client could not keep it: replies would be dropped, and
        every later request would time out."""
        try:
            await self._create_reply_topic()
        except HeadraceError:
            return  # the topic exists, or this is retried in the next period
        self._consumer.seek(TopicPartition(self.reply_topic, 0), 0)

    def _fail(self, error: HeadraceError) -> None:
        self._failure = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


class RequestMessage(Protocol):
    """Any message that may be a request: consumed, or leased from a subscription."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


A = TypeVar("A", bound=RequestMessage)


class Responder:
    """Replies to requests. Use it as `async with Responder(cluster) as responder:`."""

    def __init__(self, cluster: Cluster) -> None:
        # A reply must not recreate the reply topic of a client that is gone.
        settings = ProducerSettings(
            create_topics=False, topic_wait_seconds=_GONE_SECONDS, delivery_timeout_seconds=10.0
        )
        self._producer = Producer(cluster, settings)

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._producer.close(flush=kind is None)

    async def reply(self, request: RequestMessage, value: bytes | None, *, headers: Iterable[Header] = ()) -> bool:
        """Reply to a request; returns whether the reply topic still exists. Raises `InvalidHeader` for a message that
        is no request, or names a topic that is no reply topic."""
        topic, correlation_id = header_text(request.headers, REPLY_TO), header_text(request.headers, CORRELATION_ID)
        if not topic or not correlation_id:
            raise InvalidHeader(f"the message asks for no reply: it has no {REPLY_TO} or no {CORRELATION_ID}")
        if not topic.startswith(REPLY_PREFIX):
            # The sender of the request chose the topic, and must not make the responder write elsewhere.
            raise InvalidHeader(f"{REPLY_TO} names {topic!r}, which is no topic for replies ({REPLY_PREFIX}...)")
        ours = {CORRELATION_ID: correlation_id}
        try:
            await self._producer.publish(topic, value, headers=with_headers(tuple(headers), ours))
        except UnknownTopicOrPartition:
            return False
        return True

    async def answer(self, requests: AsyncIterable[A], work: Callable[[A], Awaitable[bytes | None]]) -> None:
        """Process requests one after the other. Messages that ask for no reply are processed as well."""
        async for request in requests:
            value = await work(request)
            with suppress(InvalidHeader):
                await self.reply(request, value)
