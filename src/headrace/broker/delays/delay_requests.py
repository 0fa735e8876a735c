"""ListDelayed and AlterDelayed, for the delayed messages of partitions that this broker leads."""

from __future__ import annotations

from headrace.broker.delays.delay_coordinator import DelayCoordinator
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.durations import TIME_MS_MAX
from headrace.model.errors import InvalidRequest
from headrace.wire.messages.delays import (
    CANCEL,
    AlterDelayedRequest,
    AlterDelayedResponse,
    DelayedChange,
    DelayedChangeResult,
    DelayedHeader,
    DelayedMessage,
    ListDelayedRequest,
    ListDelayedResponse,
)

LISTED_MAX = 1000
CHANGES_MAX = 1000


class DelayRequests:
    def __init__(self, delayed: DelayCoordinator, catalogue: Catalogue) -> None:
        self._delayed = delayed
        self._catalogue = catalogue

    async def list(self, request: ListDelayedRequest, _context: RequestContext) -> ListDelayedResponse:
        response = ListDelayedResponse()
        with ReportErrors(response):
            if not 1 <= request.count_max <= LISTED_MAX:
                raise InvalidRequest(f"a page must have 1 to {LISTED_MAX} messages, not {request.count_max}")
            self._catalogue.topic(request.topic)
            shard = self._delayed.of(request.topic, request.partition)
            response.waiting = len(shard.delays)
            for due, message in await shard.page(request.after_due_ms, request.after_offset, request.count_max):
                response.messages.append(
                    DelayedMessage(
                        offset=due.offset,
                        due_ms=due.due_ms,
                        timestamp_ms=message.timestamp_ms,
                        key=message.key,
                        value=message.value,
                        headers=[DelayedHeader(name=name, value=value) for name, value in message.headers],
                    )
                )
        return response

    async def alter(self, request: AlterDelayedRequest, _context: RequestContext) -> AlterDelayedResponse:
        response = AlterDelayedResponse()
        for number, change in enumerate(request.changes):
            result = DelayedChangeResult(offset=change.offset)
            with ReportErrors(result):
                if number >= CHANGES_MAX:
                    raise InvalidRequest(f"a request can change at most {CHANGES_MAX} messages")
                await self._alter(request, change)
            response.results.append(result)
        return response

    async def _alter(self, request: AlterDelayedRequest, change: DelayedChange) -> None:
        shard = self._delayed.of(request.topic, request.partition)
        if change.due_ms == CANCEL:
            await shard.cancel(change.offset)
        elif 0 <= change.due_ms <= TIME_MS_MAX:
            await shard.reschedule(change.offset, change.due_ms)
        else:
            raise InvalidRequest(f"{change.due_ms} is not a time in milliseconds since 1970")
