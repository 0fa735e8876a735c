"""Delayed messages."""

from __future__ import annotations

from headrace.wire.codec.schema import BYTES, INT16, INT32, INT64, STRING, ApiMessage, Part, array, wire

# ListDelayed (10006, Headrace): list the delayed messages of one partition by due time. The partition's leader
# responds. `after_due_ms` and `after_offset` are those of the last message of the previous page. A page may be
# shorter than requested; only an empty page is the last one.


class ListDelayedRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    topic: str = wire(STRING)
    partition: int = wire(INT32)
    after_due_ms: int = wire(INT64, default=-1)
    after_offset: int = wire(INT64, default=-1)
    count_max: int = wire(INT32, default=100)


class DelayedHeader(Part):
    name: str = wire(STRING)
    value: bytes | None = wire(BYTES, nullable=0, default=None)


class DelayedMessage(Part):
    offset: int = wire(INT64)
    due_ms: int = wire(INT64)
    timestamp_ms: int = wire(INT64)
    key: bytes | None = wire(BYTES, nullable=0, default=None)
    value: bytes | None = wire(BYTES, nullable=0, default=None)
    headers: list[DelayedHeader] = array(DelayedHeader)


class ListDelayedResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    waiting: int = wire(INT64)
    messages: list[DelayedMessage] = array(DelayedMessage)


# AlterDelayed (10007, Headrace): cancel or reschedule delayed messages of one partition. The partition's leader
# responds. Each change has its own result. The due time -1 cancels the message.


CANCEL = -1


class DelayedChange(Part):
    offset: int = wire(INT64)
    due_ms: int = wire(INT64, default=CANCEL)


class AlterDelayedRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    topic: str = wire(STRING)
    partition: int = wire(INT32)
    changes: list[DelayedChange] = array(DelayedChange)


class DelayedChangeResult(Part):
    offset: int = wire(INT64)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class AlterDelayedResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    results: list[DelayedChangeResult] = array(DelayedChangeResult)
