"""Single messages over REST: the message itself, and its status in each subscription."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.client.fetch.fetched_records import ConsumedRecord, FetchedRecords
from headrace.client.groups.offsets import END, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.queues.settling import SETTLED, message_statuses
from headrace.http.message import Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, Operation, Route, Verb
from headrace.model.errors import OffsetNotAvailable, OffsetOutOfRange
from headrace.model.ids import MessageId, message_id_from_text
from headrace.protocols.rest.bodies import MessageBody, message_body, rfc3339_time
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.messages.queues import SubscriptionStatus

_NAMES_UNTIL = 12  # from version 13 on, Fetch identifies topics by id
_READ_COMMITTED = 1


class AckStatus(msgspec.Struct):
    """`state` is ready, leased, waiting (for a retry), dying (until its dead letter is written) or settled. `attempts`
    is the number of deliveries, including the current one; 0 if a settled message was not delivered, or if the events
    from before its settlement were deleted. `how` and `at` are the kind and time of the settlement or of the last
    failure. `until` is the end of the lease or the wait."""

    subscription: str
    state: str
    attempts: int
    how: str | UnsetType = UNSET
    at: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    member: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class AckStatuses(msgspec.Struct):
    """`acknowledged` is true if every subscription has settled the message."""

    message_id: str
    acknowledged: bool
    subscriptions: list[AckStatus]


class MessageRoutes:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def show(self, request: Request) -> Response:
        await switch_to_task()
        message_id = await self._existing_message_id(request)
        found = await self._cluster.call_with_retries(lambda: self._fetch(message_id))
        if found is None:
            raise _not_found(message_id)
        return json_response(message_body(str(message_id), found.timestamp_ms, found.key, found.value, found.headers))

    async def acks(self, request: Request) -> Response:
        await switch_to_task()
        message_id = await self._existing_message_id(request)
        target = TopicPartition(message_id.topic, message_id.partition)
        statuses = await message_statuses(self._cluster, target, [message_id.offset], with_history=True)
        # The status is also known for messages that were deleted after all subscriptions had settled them.
        is_known = any(status.state == SETTLED for status in statuses)
        if not is_known and await self._cluster.call_with_retries(lambda: self._fetch(message_id)) is None:
            raise _not_found(message_id)
        shown = [_ack_status(status) for status in statuses]
        return json_response(AckStatuses(str(message_id), all(one.state == SETTLED for one in shown), shown))

    async def _existing_message_id(self, request: Request) -> MessageId:
        """Parse the id; raise `Problem` 404 if the partition or the topic does not exist."""
        message_id = message_id_from_text(request.params["message_id"])
        view = await self._cluster.call_with_retries(lambda: self._cluster.topic(request.params["topic"]))
        if message_id.topic != view.name or message_id.partition >= len(view.partitions):
            raise _not_found(message_id)
        return message_id

    async def _fetch(self, message_id: MessageId) -> ConsumedRecord | None:
        requested = FetchPartition(
            partition=message_id.partition, fetch_offset=message_id.offset, partition_max_bytes=1
        )
        request = FetchRequest(
            isolation_level=_READ_COMMITTED, topics=[FetchTopic(topic=message_id.topic, partitions=[requested])]
        )
        leader = (await self._cluster.partition(message_id.topic, message_id.partition)).leader
        response: FetchResponse = await self._cluster.call(request, node_id=leader, version_max=_NAMES_UNTIL)
        raise_for_code(response.error_code)
        fetched = only_result(only_result(response.responses).partitions)
        if fetched.error_code == OffsetOutOfRange.code:
            return None
        raise_for_code(fetched.error_code)
        target = TopicPartition(message_id.topic, message_id.partition)
        if not fetched.records and fetched.high_watermark <= message_id.offset:
            # A new leader may not know the high watermark yet. It responds to this request only when it does.
            end = (await find_offsets(self._cluster, {target: END}))[target].offset
            if message_id.offset < end:
                raise OffsetNotAvailable(f"{message_id} is not known to be committed yet; retry")
        batches = memoryview(fetched.records or b"")  # type: ignore[arg-type]
        first = next(iter(FetchedRecords(target, batches, message_id.offset, fetched.aborted_transactions)), None)
        return first if first is not None and first.offset == message_id.offset else None

    def routes(self) -> list[Route]:
        message, read = "/topics/{topic}/messages/{message_id}", Access(Verb.READ, AccessSubject.TOPIC)
        show = Operation("Get a message", {200: MessageBody})
        acks = Operation("Get the status of a message in each subscription", {200: AckStatuses})
        return [
            Route("GET", message, self.show, read, show),
            Route("GET", f"{message}/ack", self.acks, read, acks),
        ]


def _ack_status(status: SubscriptionStatus) -> AckStatus:
    return AckStatus(
        status.subscription,
        status.state,
        status.attempts,
        status.how or UNSET,
        rfc3339_time(status.at_ms) if status.at_ms >= 0 else UNSET,
        rfc3339_time(status.until_ms) if status.until_ms >= 0 else UNSET,
        status.member or UNSET,
        status.reason or UNSET,
    )


def _not_found(message_id: MessageId) -> Problem:
    return Problem(
        404,
        "message_not_found",
        f"message {message_id} does not exist",
        "check the id; the message may have been deleted",
    )
