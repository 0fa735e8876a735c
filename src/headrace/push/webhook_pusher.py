"""Push the messages of subscriptions to webhooks: one `WebhookPusher` per webhook, and all pushers of a process.

- A circuit breaker guards each webhook. While it is open nothing is leased, then one message at a time is tried.
  Messages wait in the log meanwhile, and no delivery attempt is counted for a message that could not be sent.
- A key is held by its message until the message is settled, also while it waits for its retry: the order of keys is
  that of the subscription.
- An unexpected error is logged, shown as the last error of the webhook, and retried with back-off. It never leaves
  `WebhookPusher.run`, where it would end the process and with it all other webhooks.
- `WebhookPushers` polls the brokers for the webhooks every second, and for the topics of their subscriptions every few
  seconds. A webhook that is changed is stopped, its messages are settled or given back, and it starts anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set

import msgspec

from headrace.client.admin.webhooks import WebhookPoller, subscribed_topics
from headrace.client.cluster import Cluster
from headrace.client.connections.backoff import Backoff
from headrace.client.queues.feed import Feed
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.settling import ACK, NACK, REJECT
from headrace.machines.queues.circuit_breaker import CircuitBreaker
from headrace.machines.queues.rate_limiter import RateLimiter
from headrace.model.errors import HeadraceError
from headrace.push.webhook import AcknowledgeType, DeliveryOutcome, retry_seconds, unanswered_outcome
from headrace.push.webhook_sender import MessageSender
from headrace.runtime.tasks import wait_until_set
from headrace.wire.messages.queues import DescribedPush, SettleItem

log = logging.getLogger(__name__)

_UNSET = -1
_LEASE_SECONDS = 30.0
_TAKE_SECONDS = 5.0
_ERROR_PAUSE_SECONDS = 1.0
_FAILURES_MAX = 5  # in a row, before the circuit opens
_OPEN_MS, _OPEN_MAX_MS = 1000, 60_000
_RESTART_SECONDS, _RESTART_MAX_SECONDS = 1.0, 60.0
_ERROR_LENGTH_MAX = 300
_RECHECK_SECONDS = 0.1  # between attempts to connect to a receiver that is up at times


class WebhookStatus(msgspec.Struct):
    """The state of a webhook in this process, since it was set. `failed` counts requests, not messages. `topic` is
    empty for a webhook of several topics."""

    subscription: str
    topic: str
    url: str
    circuit: str = "closed"
    in_flight: int = 0
    delivered: int = 0
    failed: int = 0
    rejected: int = 0
    last_error: str = ""
    last_error_ms: int = 0


class WebhookPusher:
    def __init__(self, push: DescribedPush, topics: Sequence[str], cluster: Cluster, sender: MessageSender) -> None:
        self.push = push
        self._cluster = cluster
        self._sender = sender
        self._feed = self._new_feed(topics)
        self._circuit = CircuitBreaker(_FAILURES_MAX, _OPEN_MS, _OPEN_MAX_MS)
        self._rate = RateLimiter(push.rate or None)
        self._status = WebhookStatus(push.subscription, push.topics[0] if len(push.topics) == 1 else "", push.url)
        self._response_received = asyncio.Event()  # or a message was released
        self._take_task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def status(self) -> WebhookStatus:
        self._status.circuit = self._circuit.state
        self._status.in_flight = self._feed.in_flight
        return self._status

    def set_topics(self, topics: Sequence[str]) -> None:
        self._feed.topics = topics

    def stop(self) -> None:
        """Take no more messages; `run` returns when every message that was sent is settled."""
        self._is_stopped = True
        self._response_received.set()
        if self._take_task is not None:
            self._take_task.cancel()

    async def run(self) -> None:
        """Run until stopped. If it is cancelled, messages in flight are given back."""
        backoff, delivered = self._restart_backoff(), 0
        while not self._is_stopped:
            try:
                await self._run()
            except Exception as error:
                self._unexpected(_root_cause(error))
                if self._status.delivered > delivered:
                    backoff, delivered = self._restart_backoff(), self._status.delivered
                if not self._is_stopped:
                    await self._wait_for_response(backoff.next_seconds())
                self._feed = self._new_feed(self._feed.topics)

    def _new_feed(self, topics: Sequence[str]) -> Feed:
        return Feed(self._cluster, self.push.subscription, topics, self.push.concurrency, _LEASE_SECONDS)

    def _restart_backoff(self) -> Backoff:
        return Backoff(self._cluster.entropy, first_seconds=_RESTART_SECONDS, cap_seconds=_RESTART_MAX_SECONDS)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as around:
                extending = around.create_task(self._feed.keep_extending(_LEASE_SECONDS))
                async with asyncio.TaskGroup() as deliveries:
                    self._take_task = deliveries.create_task(self._take_messages(deliveries))
                extending.cancel()
        finally:
            await self._feed.close()
            await self._feed.give_back(self._feed.held, "its sender was stopped")

    async def _take_messages(self, deliveries: asyncio.TaskGroup) -> None:
        while True:
            await self._wait_for_demand()
            try:
                messages = await self._feed.take(_TAKE_SECONDS)
            except HeadraceError as error:
                self._record_error(error.message)
                await asyncio.sleep(_ERROR_PAUSE_SECONDS)
                continue
            for message in messages:
                deliveries.create_task(self._deliver(message))

    async def _wait_for_demand(self) -> None:
        """Return when messages may be leased: one to probe an open circuit, or as many as the webhook allows."""
        circuit, feed = self._circuit, self._feed
        while circuit.state != "closed":
            await feed.stop_leasing()
            due_seconds = (circuit.retry_at_ms - self._now_ms()) / 1000
            if due_seconds <= 0:
                feed.credit = 1
                return
            await self._wait_for_response(min(due_seconds, _ERROR_PAUSE_SECONDS))
        feed.credit = self.push.concurrency

    async def _deliver(self, message: LeasedMessage) -> None:
        if await self._wait_for_rate(message):
            try:
                outcome = await self._sender.send(self.push, message)
            except Exception as error:
                outcome = unanswered_outcome(self._unexpected(error))
            self._record_outcome(outcome)
            await self._settle(message, outcome)
        else:
            await self._feed.release([message])

    async def _wait_for_rate(self, message: LeasedMessage) -> bool:
        """Return True when the rate allows this message; False if it must not be sent from here, or not now."""
        circuit = self._circuit
        while not self._is_stopped and self._feed.holds(message):
            now_ms = self._now_ms()
            if circuit.state != "closed" and now_ms < circuit.retry_at_ms:
                return False
            wait_seconds = self._rate.wait_seconds(now_ms / 1000)
            if wait_seconds == 0 and circuit.may_try(now_ms):
                self._rate.take(1, now_ms / 1000)
                return True
            await self._wait_for_response(wait_seconds)
        return False

    async def _settle(self, message: LeasedMessage, outcome: DeliveryOutcome) -> None:
        if outcome.verdict is AcknowledgeType.UNDELIVERED:
            await asyncio.sleep(_RECHECK_SECONDS)
            await self._feed.release([message])
            return
        match outcome.verdict:
            case AcknowledgeType.ACK:
                how = SettleItem(how=ACK)
            case AcknowledgeType.REJECT:
                how = SettleItem(how=REJECT, reason=outcome.error)
            case _:
                how = SettleItem(how=NACK, delay_ms=self._delay_ms(message, outcome), reason=outcome.error)
        refused = await self._feed.settle([message.receipt], how)
        for one in refused:
            log.info("webhook message will be delivered again message=%s error=%r", one.receipt.id, one.error.message)

    def _delay_ms(self, message: LeasedMessage, outcome: DeliveryOutcome) -> int:
        seconds = outcome.delay_seconds
        if seconds is None:
            seconds = retry_seconds(self.push, message.attempt, self._cluster.entropy.uniform(0.0, 1.0))
        return _UNSET if seconds is None else int(seconds * 1000)

    def _record_outcome(self, outcome: DeliveryOutcome) -> None:
        before = self._circuit.state
        if outcome.is_healthy:
            self._circuit.succeeded()
        else:
            self._circuit.failed(self._now_ms())
        if outcome.verdict is AcknowledgeType.ACK:
            self._status.delivered += 1
        else:
            self._status.failed += 1
            self._status.rejected += outcome.verdict is AcknowledgeType.REJECT
            self._record_error(outcome.error)
        after = self._circuit.state
        if (before, after) == ("closed", "open"):
            log.warning("webhook circuit opened subscription=%s error=%r", self.push.subscription, outcome.error)
        elif before != "closed" and after == "closed":
            log.info("webhook circuit closed subscription=%s", self.push.subscription)
        if after != "closed":
            self._feed.credit = 0
        self._response_received.set()

    def _record_error(self, error: str) -> None:
        self._status.last_error = error
        self._status.last_error_ms = self._cluster.clock.now_ms()

    def _unexpected(self, error: BaseException) -> str:
        what = f"unexpected error: {type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX]
        log.error("push failed subscription=%r error=%r", self.push.subscription, what, exc_info=error)
        self._record_error(what)
        return what

    async def _wait_for_response(self, seconds: float) -> None:
        """Return when a receiver has responded, or after this time."""
        self._response_received.clear()
        await wait_until_set(self._response_received, seconds)

    def _now_ms(self) -> int:
        return int(self._cluster.clock.monotonic() * 1000)


def _root_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_Key = tuple[str, tuple[str, ...]]
"""The subscription and the configured topics of a webhook."""

_POLL_SECONDS = 1.0
_TOPICS_SECONDS = 5.0


class WebhookPushers:
    """Starts and stops the pushers of a process; iterates over their states."""

    def __init__(self, cluster: Cluster, open_sender: Callable[[], Awaitable[MessageSender]]) -> None:
        self._cluster = cluster
        self._open_sender = open_sender
        self._sender: MessageSender | None = None
        self._poller = WebhookPoller(cluster)
        self._pushers: dict[_Key, WebhookPusher] = {}
        self._last_webhooks: Sequence[DescribedPush] = ()
        self._checked_at: float | None = None

    def __iter__(self) -> Iterator[WebhookStatus]:
        return (pusher.status for pusher in self._pushers.values())

    def status(self, topic: str, subscription: str) -> WebhookStatus | None:
        """None while the subscription has no webhook in this process."""
        of_group = self._pushers.get((subscription, ()))
        found = self._pushers.get((subscription, (topic,)), of_group)
        return None if found is None else found.status

    async def run(self) -> None:
        last_error = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        await self._update(tasks)
                        last_error = ""
                    except HeadraceError as error:
                        if error.message != last_error:
                            log.warning("cannot list webhooks error=%r", error.message)
                        last_error = error.message
                        self._cluster.invalidate_metadata()
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            if self._sender is not None:
                await self._sender.close()

    async def _update(self, tasks: asyncio.TaskGroup) -> None:
        pushes = await self._poller.ask()
        if not pushes and not self._pushers:
            return
        now = self._cluster.clock.monotonic()
        is_due = self._checked_at is None or now - self._checked_at >= _TOPICS_SECONDS
        if pushes is self._last_webhooks and not is_due:
            return
        names = {push.subscription for push in pushes}
        subscribed = await subscribed_topics(self._cluster, sorted(names)) if pushes else {}
        own = {(push.subscription, topic) for push in pushes if len(push.topics) == 1 for topic in push.topics}
        wanted = {_key(push): push for push in pushes if push.url}
        topics = {key: _topics_of(push, subscribed.get(push.subscription, ()), own) for key, push in wanted.items()}
        await self._apply(tasks, wanted, topics)
        self._last_webhooks, self._checked_at = pushes, now

    async def _apply(
        self, tasks: asyncio.TaskGroup, wanted: Mapping[_Key, DescribedPush], topics: Mapping[_Key, Sequence[str]]
    ) -> None:
        for key, pusher in list(self._pushers.items()):
            if wanted.get(key) != pusher.push or not topics.get(key):
                del self._pushers[key]
                pusher.stop()  # its task ends when the receiver has responded
        for key, push in wanted.items():
            if key in self._pushers:
                self._pushers[key].set_topics(topics[key])
            elif topics.get(key):
                if self._sender is None:
                    self._sender = await self._open_sender()
                pusher = self._pushers[key] = WebhookPusher(push, topics[key], self._cluster, self._sender)
                tasks.create_task(pusher.run())


def _key(push: DescribedPush) -> _Key:
    return push.subscription, tuple(push.topics)


def _topics_of(push: DescribedPush, subscribed: Sequence[str], own: Set[tuple[str, str]]) -> Sequence[str]:
    """A group's webhook applies to its topics, except for those whose subscription has its own configuration."""
    if len(push.topics) == 1:
        return [topic for topic in subscribed if topic in push.topics]
    return [
        topic
        for topic in subscribed
        if (not push.topics or topic in push.topics) and (push.subscription, topic) not in own
    ]
