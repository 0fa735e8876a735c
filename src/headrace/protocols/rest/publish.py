"""Publish over REST: one message per request, several in a batch, or a request that waits for a reply.

- The response is sent when the message is as durable as its topic is configured to be.
- Concurrent requests share record batches, so that many small requests cost little more than a few large ones.
- A batch request is written to one partition as one record batch, except for messages with keys, whose partitions
  depend on the keys.
- Requests that wait for a reply share one reply topic, which is created on the first such request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicView
from headrace.client.produce.producer import Header
from headrace.client.produce.publisher import PendingPublish, Publisher
from headrace.client.queues.request_reply import REPLY_PREFIX, ReplyMessage, Requests
from headrace.http.message import JSON, Request, Response, json_response
from headrace.http.problems import Problem, ProblemBody
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Parameter, Route, Verb
from headrace.model.errors import HeadraceError, RequestTimedOut
from headrace.model.names import delayed_topic
from headrace.protocols.rest.authorization_rechecks import IsStillAuthorized, authorization_revoked
from headrace.protocols.rest.bodies import (
    CONTENT_TYPE,
    JSON_ERRORS,
    duration_ms,
    header_fields,
    invalid_json,
    invalid_parameter,
    is_json,
    parse_body,
    parse_json_text,
    rfc3339_time,
    value_fields,
)
from headrace.protocols.rest.error_responses import IDEMPOTENCY_KEY_REUSED, problem_of_error
from headrace.protocols.rest.outgoing_messages import (
    RESERVED_PREFIX,
    Idempotency,
    Messages,
    OutgoingBody,
    OutgoingRecord,
    idempotency_of,
    record_from_body,
    record_from_headers,
    values_only,
)
from headrace.protocols.rest.topics import ensure_writable
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.tasks import CooperativeYield
from headrace.wire.batches.batch import BatchRecord

_CLOSE_SECONDS = 2.0


class ReplyService:
    """Sends the requests that wait for a reply."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._requests: Requests | None = None
        self._opening = asyncio.Lock()

    async def request(
        self, topic: str, value: bytes, key: bytes | None, headers: Iterable[Header], timeout_seconds: float
    ) -> ReplyMessage:
        """Return the reply, or raise `Problem` 504 if none arrives in time."""
        await switch_to_task()
        requests = await self._open()
        try:
            return await requests.request(topic, value, key=key, headers=headers, timeout_seconds=timeout_seconds)
        except RequestTimedOut as error:
            raise Problem(
                504, "no_reply", error.message, "check that a consumer of the topic is running; a late reply is dropped"
            ) from None
        except HeadraceError:
            self._requests = None  # the next request creates a new reply topic in case this one is gone
            raise

    async def close(self) -> None:
        if self._requests is not None:
            with suppress(TimeoutError):  # the broker deletes the idle topic later anyway
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._requests.close()

    async def _open(self) -> Requests:
        async with self._opening:
            if self._requests is None:
                opened = Requests(self._cluster)
                await opened.__aenter__()
                self._requests = opened
            return self._requests


BATCH = "application/vnd.headrace.messages+json"
BODY_BYTES_MAX = 16 << 20
_ERROR_PREFIX = '{"error"'
_REUSED = f'{_ERROR_PREFIX}:{{"code":"{IDEMPOTENCY_KEY_REUSED}"'
_REPLY_SECONDS, _REPLY_SECONDS_MAX = 30.0, 60.0


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    messages: Messages[OutgoingBody]


class PublishedBody(msgspec.Struct):
    """`due_at` is present if the message is delayed until then; its id is then that of the delayed message."""

    message_id: str
    due_at: str | UnsetType = UNSET


class BatchPublished(msgspec.Struct):
    """The messages in the order of the request."""

    messages: list[PublishedBody]


class FailedMessage(msgspec.Struct):
    error: ProblemBody


class PartiallyPublished(msgspec.Struct):
    """The messages in the order of the request; each has a `message_id` or an `error`."""

    messages: list[dict[str, Any]]


class ReplyBody(msgspec.Struct):
    """The reply of a consumer of the topic."""

    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    headers: dict[str, str | None] = {}


_Group = tuple[bool, int | None]
"""The destination of a group of messages: whether they are delayed, and the partition."""

_BATCH = msgspec.json.Decoder(BatchBody)


class PublishRoutes:
    def __init__(
        self, cluster: Cluster, publisher: Publisher, replies: ReplyService, is_authorized: IsStillAuthorized
    ) -> None:
        self._clock = cluster.clock
        self._publisher = publisher
        self._replies = replies
        self._is_authorized = is_authorized

    async def publish(self, request: Request) -> Response:
        topic, headers, body = request.params["topic"], request.headers, request.body
        if topic.startswith(REPLY_PREFIX):
            # Do not recreate the reply topic of a client that is gone, since nothing would read the reply.
            await self._view(topic, create=False)
        else:
            ensure_writable(topic)
        content_type = headers.get(CONTENT_TYPE)
        if content_type is not None and (content_type == JSON or is_json(content_type)):
            if content_type.startswith(BATCH):
                return await self._publish_batch(request, topic)
            try:
                parse_json_text(body)
            except JSON_ERRORS as error:
                raise invalid_json(body, error) from None
        idempotency = idempotency_of(headers, body, request.caller.token_id)
        one = record_from_headers(headers, body, self._clock.now_ms(), idempotency)
        if "wait_for" in request.query:
            return await self._request_reply(request, topic, one)
        view = self._publisher.cached_topic(topic) or await self._view(topic)
        if one.due_ms is not None:
            topic = delayed_topic(topic)
            view = await self._view(topic)
        partition = self._partition(view, one)
        (publish,) = self._publisher.submit(view, (one.record,), partition, alone=one.dedup_id is not None)
        offset = await publish.batch.offset_of(publish.first)
        text = f'{{"message_id":"{topic}:{publish.partition}:{offset}"{_due_text(one)}}}'
        return Response(201, text.encode(), JSON)

    def _partition(self, view: TopicView, one: OutgoingRecord) -> int | None:
        """Choose the partition; None lets the producer choose one with a pending batch. A message with an idempotency
        key always goes to the same partition."""
        if one.partition is not None:
            return one.partition
        key = one.record.key if one.record.key is not None else one.dedup_id
        return None if key is None else self._publisher.partition_for(key, view)

    async def _view(self, topic: str, *, create: bool = True) -> TopicView:
        return self._publisher.cached_topic(topic) or await self._publisher.topic(topic, create=create)

    # Requests that wait for a reply

    async def _request_reply(self, request: Request, topic: str, one: OutgoingRecord) -> Response:
        if request.query["wait_for"] != "reply":
            raise invalid_parameter("wait_for", "the only supported value is reply", "use wait_for=reply")
        if one.due_ms is not None or one.partition is not None or one.dedup_id is not None:
            raise invalid_parameter("wait_for", "a request cannot have a delay, a partition or an Idempotency-Key")
        seconds = _REPLY_SECONDS
        if "timeout" in request.query:
            seconds = duration_ms(request.query["timeout"], "timeout") / 1000
        if not 0 < seconds <= _REPLY_SECONDS_MAX:
            raise invalid_parameter("timeout", f"the maximum is {_REPLY_SECONDS_MAX:g} s")
        record = one.record
        await self._view(topic)
        reply = await self._replies.request(topic, request.body, record.key, record.headers, seconds)
        if not await self._is_authorized(request):
            raise authorization_revoked()
        body = ReplyBody(headers=header_fields(reply.headers))
        body.value, body.value_base64 = value_fields(reply.value, reply.headers)
        return json_response(body)

    # Batches

    async def _publish_batch(self, request: Request, topic: str) -> Response:
        for name in (*request.headers, *request.query):
            if name.startswith(RESERVED_PREFIX) or name == "wait_for":
                raise invalid_parameter(
                    name, "it applies to single messages only", "set it for each message in the batch"
                )
        if not request.body.isascii():
            try:
                request.body.decode()
            except UnicodeDecodeError as error:
                raise invalid_json(request.body, error) from None
        idempotency = idempotency_of(request.headers, request.body, request.caller.token_id, is_batch=True)
        values = values_only(request.body) if idempotency is None else None
        if values is None:
            return await self._publish_each(topic, parse_body(request, _BATCH).messages, idempotency)
        now_ms = self._clock.now_ms()
        view = self._publisher.cached_topic(topic) or await self._view(topic)
        texts: list[str] = []
        failures: list[HeadraceError] = []
        for publish in self._publisher.submit(view, [BatchRecord(None, value, (), now_ms) for value in values]):
            texts += _result_texts(topic, publish.partition, await publish.outcomes(), failures)
        return _batch_response(texts, failures)

    async def _publish_each(
        self, topic: str, items: Sequence[OutgoingBody], idempotency: Idempotency | None
    ) -> Response:
        """Publish the messages; those of one partition are sent together, in order."""
        now_ms, yield_control = self._clock.now_ms(), CooperativeYield(self._clock)
        outgoing: list[OutgoingRecord] = []
        for index, item in enumerate(items):
            await yield_control()
            try:
                outgoing.append(record_from_body(item, now_ms, None if idempotency is None else idempotency.of(index)))
            except Problem as problem:
                problem.message = f"message {index}: {problem.message}"
                raise
        views = {False: await self._view(topic)}
        if any(one.due_ms is not None for one in outgoing):
            views[True] = await self._view(delayed_topic(topic))
        groups: dict[_Group, list[int]] = {}
        for index, one in enumerate(outgoing):
            await yield_control()
            is_delayed = one.due_ms is not None
            partition = self._partition_of_batch(views[is_delayed], one, idempotency)
            groups.setdefault((is_delayed, partition), []).append(index)
        texts = [""] * len(outgoing)
        failures: list[HeadraceError] = []
        for round_groups in self._rounds(groups, views[False], idempotency):
            submitted: list[tuple[list[int], Sequence[PendingPublish | HeadraceError]]] = []
            for is_delayed, partition in round_groups:
                indexes, view = groups[is_delayed, partition], views[is_delayed]
                records = [outgoing[index].record for index in indexes]
                try:
                    pending = self._publisher.submit(view, records, partition, alone=idempotency is not None)
                    submitted.append((indexes, pending))
                except HeadraceError as error:
                    submitted.append((indexes, [error]))
            for indexes, results in submitted:
                name = topic if outgoing[indexes[0]].due_ms is None else delayed_topic(topic)
                for index, text in zip(
                    indexes, await _group_results(name, len(indexes), results, failures), strict=True
                ):
                    texts[index] = _with_due(text, outgoing[index])
            if failures and all(text.startswith(_REUSED) for text in texts if text):
                raise failures[0]  # the remaining messages are not written
        return _batch_response(texts, failures)

    def _rounds(
        self, groups: Iterable[_Group], view: TopicView, idempotency: Idempotency | None
    ) -> Sequence[Sequence[_Group]]:
        """Split the groups into rounds. With an Idempotency-Key one group is written before all others: if two requests
        use the same key for different messages, the second one is rejected before it has written anything."""
        if idempotency is None:
            return [list(groups)]
        preferred = self._publisher.partition_for(idempotency.dedup_id, view)
        first, *others = sorted(groups, key=lambda group: (group[0], group[1] != preferred, group[1]))
        return [[first], others]

    def _partition_of_batch(self, view: TopicView, one: OutgoingRecord, idempotency: Idempotency | None) -> int | None:
        """Choose one partition for all messages without a key, by the idempotency key of the batch if it has one."""
        if one.partition is None and one.record.key is None and idempotency is not None:
            return self._publisher.partition_for(idempotency.dedup_id, view)
        return self._partition(view, one)

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/topics/{topic}/messages",
                self.publish,
                Access(Verb.PUBLISH, AccessSubject.TOPIC),
                Operation(
                    "Publish a message, or a batch of them",
                    {200: ReplyBody, 201: (PublishedBody, BatchPublished), 207: PartiallyPublished},
                    {JSON: Any, BATCH: BatchBody, "application/octet-stream": bytes},
                    _PARAMETERS,
                    (504,),
                ),
                ForwarderRole.PUBLISH,
                BODY_BYTES_MAX,
            )
        ]


def _due_text(one: OutgoingRecord) -> str:
    return "" if one.due_ms is None else f',"due_at":"{rfc3339_time(one.due_ms)}"'


def _with_due(text: str, one: OutgoingRecord) -> str:
    return text if one.due_ms is None or text.startswith(_ERROR_PREFIX) else f"{text[:-1]}{_due_text(one)}}}"


def _result_texts(
    topic: str, partition: int, outcomes: Sequence[int | HeadraceError], failures: list[HeadraceError]
) -> list[str]:
    """Return the result of each message as JSON, and collect failures."""
    start = f'{{"message_id":"{topic}:{partition}:'
    if isinstance(outcomes, range):
        return [f'{start}{offset}"}}' for offset in outcomes]
    texts: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, HeadraceError):
            failures.append(outcome)
            texts.append(msgspec.json.encode(FailedMessage(problem_of_error(outcome).body)).decode())
        else:
            texts.append(f'{start}{outcome}"}}')
    return texts


async def _group_results(
    topic: str, count: int, pending: Sequence[PendingPublish | HeadraceError], failures: list[HeadraceError]
) -> list[str]:
    """Wait for the messages of one group; return the result of each."""
    texts: list[str] = []
    for publish in pending:
        if isinstance(publish, HeadraceError):
            texts += _result_texts(topic, -1, [publish] * count, failures)
        else:
            texts += _result_texts(topic, publish.partition, await publish.outcomes(), failures)
    return texts


def _batch_response(texts: Sequence[str], failures: Sequence[HeadraceError]) -> Response:
    if len(failures) == len(texts):
        raise failures[0]
    return Response(207 if failures else 201, f'{{"messages":[{",".join(texts)}]}}'.encode(), JSON)


_PARAMETERS = (
    Parameter("wait_for", Literal["reply"], "wait for the reply of a consumer of the topic"),
    Parameter("timeout", str, f"the maximum wait for a reply: 500ms, 10s, or seconds; default {_REPLY_SECONDS:g}s"),
    Parameter("Headrace-Key", str, "the key; messages with the same key stay in order", "header"),
    Parameter("Headrace-Partition", Annotated[int, Meta(ge=0, le=999_999_999)], "the partition to use", "header"),
    Parameter("Headrace-Delay", str, "deliver after a delay: 10m", "header"),
    Parameter("Headrace-Deliver-At", str, "deliver at a time: 2027-01-01T09:00:00Z", "header"),
    Parameter("Headrace-Repeat", str, "deliver repeatedly: `every 10s`, or a cron expression of five fields", "header"),
    Parameter("Headrace-Priority", Annotated[int, Meta(ge=0, le=9)], "0 (lowest) to 9", "header"),
    Parameter("Headrace-Ttl", str, "the message expires after this time: 1h", "header"),
    Parameter("Headrace-Tags", str, "tags for filters, separated by commas", "header"),
    Parameter("Idempotency-Key", str, "a retry with the same key is not stored again", "header"),
)
