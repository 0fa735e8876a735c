"""AlterDelayed (10007, our own): messages that wait for one partition are not to come, or at another time.

Asked of the leader of the partition. A change stands for itself: some may be refused where others succeed. With a due
time of -1 the message is cancelled.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire

CANCEL = -1


@part
class DelayedChange:
    offset: int = wire(INT64)
    due_ms: int = wire(INT64, default=CANCEL)


@message(versions=(0, 0), flexible_since=0)
class AlterDelayedRequest:
    topic: str = wire(STRING)
    partition: int = wire(INT32)
    changes: list[DelayedChange] = wire(array(DelayedChange))


@part
class DelayedChangeResult:
    offset: int = wire(INT64)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class AlterDelayedResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[DelayedChangeResult] = wire(array(DelayedChangeResult))
