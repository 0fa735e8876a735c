"""DescribePushes (10012, our own): which subscriptions are pushed, to where and how. To any broker.

For whoever does the pushing, so it has the secrets in it. `version` stands for all that is told, and is the same at
every broker that knows the same: whoever names it hears `is_changed` false and nothing else.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


@message(versions=(0, 0), flexible_since=0)
class DescribePushesRequest:
    version: str = wire(STRING, default="")


@part
class DescribedPush:
    """`topics` are those whose messages are pushed, none for all that the subscription is in. `backoff_ms` is what it
    lets a failed message wait at first; 0 leaves it to the sender."""

    subscription: str = wire(STRING)
    url: str = wire(STRING)
    secret: str = wire(STRING)
    concurrency: int = wire(INT32)
    rate: int = wire(INT32)
    timeout_ms: int = wire(INT32)
    backoff_ms: int = wire(INT64)
    topics: list[str] = wire(array(STRING))


@message(versions=(0, 0), flexible_since=0)
class DescribePushesResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    version: str = wire(STRING, default="")
    is_changed: bool = wire(BOOL, default=False)
    pushes: list[DescribedPush] = wire(array(DescribedPush))
