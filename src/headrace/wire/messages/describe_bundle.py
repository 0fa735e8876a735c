"""DescribeBundle (10013, our own): the last sequence that a bundle has committed, and by whom. To its coordinator."""

from __future__ import annotations

from headrace.wire.messages.end_bundle import BundleMember
from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, wire


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleRequest:
    bundle: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DescribeBundleResponse:
    """`sequence` is -1 for a bundle that has committed nothing, or is not known any more. `digest` as it was given with
    the commit."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    sequence: int = wire(INT64, default=-1)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)
