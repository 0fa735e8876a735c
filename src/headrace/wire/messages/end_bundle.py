"""EndBundle (10014, our own): the transactions of these members commit as one, or are aborted. To their coordinator."""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class BundleMember:
    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


@message(versions=(0, 0), flexible_since=0)
class EndBundleRequest:
    """`sequence` counts for a commit only; the members of an abort have none. `digest` names what the commit is for; it
    is stored with it. Empty: unknown."""

    bundle: str = wire(STRING)
    sequence: int = wire(INT64, default=-1)
    is_commit: bool = wire(BOOL)
    members: list[BundleMember] = wire(array(BundleMember))
    digest: str = wire(STRING, tag=0)


@message(versions=(0, 0), flexible_since=0)
class EndBundleResponse:
    """`is_committed`: now, or by an earlier ask with the same members. Else, without an error, whatever of the members
    was open is aborted. `sequence`: the last that the bundle has committed."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    is_committed: bool = wire(BOOL)
    sequence: int = wire(INT64, default=-1)
