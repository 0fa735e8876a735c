"""Delayed messages over REST: list, cancel and reschedule them. Publishing with a delay adds them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.queues.schedule import Schedule, ScheduledMessage
from headrace.http.message import Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Parameter, Route, Verb
from headrace.model.errors import InvalidRecordState, UnknownTopicOrPartition
from headrace.model.ids import MessageId, message_id_from_text
from headrace.model.names import delayed_topic
from headrace.protocols.rest.bodies import (
    Duration,
    MessageBody,
    duration_ms,
    header_fields,
    integer_parameter,
    invalid_parameter,
    key_fields,
    parse_body,
    rfc3339_time,
    time_ms,
    value_fields,
)
from headrace.runtime.inline_start import switch_to_task

_LIMIT, _LIMIT_MAX = 100, 500
_OFFSET_MAX = 2**63 - 1
_TIME_MAX = 2**62


class ScheduledBody(MessageBody, kw_only=True):
    due_at: str
    repeat: str | UnsetType = UNSET


class ScheduledMessages(msgspec.Struct):
    """Ordered by due time. `after` is present if there are more: pass it in the next request."""

    messages: list[ScheduledBody]
    after: str | UnsetType = UNSET


class RescheduleBody(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly one of the two."""

    deliver_at: str | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET


class RescheduledBody(msgspec.Struct):
    message_id: str
    due_at: str


_RESCHEDULE = msgspec.json.Decoder(RescheduleBody)


class _PageEnd(NamedTuple):
    """The end of a page, in the order of the list."""

    due_ms: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.due_ms}:{self.partition}:{self.offset}"


class ScheduledRoutes:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def page(self, request: Request) -> Response:
        await switch_to_task()
        limit = integer_parameter(request.query, "limit", _LIMIT, 1, _LIMIT_MAX)
        after = _page_end(request.query.get("after"))
        schedule = Schedule(self._cluster, request.params["topic"])
        found: list[tuple[_PageEnd, ScheduledMessage]] = []
        for partition in range(await self._partitions(schedule.topic)):
            page = await schedule.page(partition, *_page_start(after, partition))
            found += [(_PageEnd(one.due_ms, partition, one.id.offset), one) for one in page]
        found.sort(key=lambda pair: pair[0])
        shown = ScheduledMessages([_body(one) for _, one in found[:limit]])
        if len(found) > limit:
            shown.after = str(found[limit - 1][0])
        return json_response(shown)

    async def cancel(self, request: Request) -> Response:
        await switch_to_task()
        schedule, message_id = self._schedule_and_id(request)
        try:
            await schedule.cancel(message_id)
        except InvalidRecordState as error:
            raise _not_waiting(error) from None
        return Response(204)

    async def move(self, request: Request) -> Response:
        await switch_to_task()
        body = parse_body(request, _RESCHEDULE)
        schedule, message_id = self._schedule_and_id(request)
        if (body.deliver_at is UNSET) == (body.delay is UNSET):
            raise invalid_parameter("deliver_at", "exactly one of delay and deliver_at is required", "send one of them")
        if body.deliver_at is not UNSET:
            due_ms = time_ms(body.deliver_at, "deliver_at")
        else:
            assert body.delay is not UNSET
            due_ms = self._cluster.clock.now_ms() + duration_ms(body.delay, "delay")
        try:
            await schedule.move(message_id, due_ms)
        except InvalidRecordState as error:
            raise _not_waiting(error) from None
        return json_response(RescheduledBody(str(message_id), rfc3339_time(due_ms)))

    def _schedule_and_id(self, request: Request) -> tuple[Schedule, MessageId]:
        schedule = Schedule(self._cluster, request.params["topic"])
        message_id = message_id_from_text(request.params["message_id"])
        if message_id.topic != delayed_topic(schedule.topic):
            raise Problem(
                404,
                "message_not_found",
                f"{message_id} is not the id of a delayed message of {schedule.topic}",
                "GET /topics/{topic}/scheduled lists delayed messages",
            )
        return schedule, message_id

    async def _partitions(self, topic: str) -> int:
        """Return the number of partitions with delayed messages; 0 if no message was ever delayed. Raise if the topic
        does not exist."""
        cluster = self._cluster
        try:
            return len(
                (await cluster.call_with_retries(lambda: cluster.current_topic(delayed_topic(topic)))).partitions
            )
        except UnknownTopicOrPartition:
            await cluster.call_with_retries(lambda: cluster.topic(topic))
            return 0

    def routes(self) -> list[Route]:
        all_, one = "/topics/{topic}/scheduled", "/topics/{topic}/scheduled/{message_id}"
        read, write = Access(Verb.READ, AccessSubject.TOPIC), Access(Verb.PUBLISH, AccessSubject.TOPIC)
        page = Operation(
            "List delayed messages",
            {200: ScheduledMessages},
            parameters=(
                Parameter("limit", Annotated[int, Meta(ge=1, le=_LIMIT_MAX)], f"at most this many; default {_LIMIT}"),
                Parameter("after", str, "start after the previous page: its `after`"),
            ),
        )
        cancel = Operation("Cancel a delayed message", {204: None}, problems=(409,))
        move = Operation(
            "Change when a delayed message is due", {200: RescheduledBody}, RescheduleBody, problems=(409,)
        )
        return [
            Route("GET", all_, self.page, read, page, ForwarderRole.PUBLISH),
            Route("DELETE", one, self.cancel, write, cancel, ForwarderRole.PUBLISH),
            Route("PATCH", one, self.move, write, move, ForwarderRole.PUBLISH),
        ]


def _body(one: ScheduledMessage) -> ScheduledBody:
    body = ScheduledBody(
        message_id=str(one.id),
        published_at=rfc3339_time(one.timestamp_ms),
        headers=header_fields(one.headers),
        due_at=rfc3339_time(one.due_ms),
        repeat=one.repeat or UNSET,
    )
    body.value, body.value_base64 = value_fields(one.value, one.headers)
    body.key, body.key_base64 = key_fields(one.key)
    return body


def _page_end(text: str | None) -> _PageEnd | None:
    if text is None:
        return None
    numbers = text.split(":")
    if len(numbers) != 3 or not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in numbers):
        raise invalid_parameter("after", f"{text[:60]!r} is not the `after` of a page", "omit it to get the first page")
    due_ms, partition, offset = map(int, numbers)
    return _PageEnd(min(due_ms, _TIME_MAX), partition, offset)


def _page_start(after: _PageEnd | None, partition: int) -> tuple[int, int]:
    """Return due time and offset after which a partition's list continues; equal times are ordered by partition."""
    if after is None:
        return -1, -1
    if partition == after.partition:
        return after.due_ms, after.offset
    return (after.due_ms, _OFFSET_MAX) if partition < after.partition else (after.due_ms - 1, _OFFSET_MAX)


def _not_waiting(error: InvalidRecordState) -> Problem:
    return Problem(
        409, "not_waiting", error.message, "the message has been delivered or cancelled, or is being delivered"
    )
