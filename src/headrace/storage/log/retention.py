"""Delete segments that exceed a topic's retention.ms or retention.bytes.

- Only segments below `deletable_offset` are deleted: they are durable on this broker and committed. A leader
  whose log started above the high watermark would make a new follower start there too, and that follower could not
  truncate to the high watermark of the next leader.
- The active segment is never deleted. If all of its records have expired, it is rolled first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.storage.segments.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


async def delete_expired_segments(log: Log, now_ms: int) -> int:
    """Enforce retention.ms and retention.bytes; returns how many segments were removed."""
    if not log.usable or not log.enforces_retention:
        return 0
    if _is_expired(log, log.active, now_ms) and log.flushed_offset == log.end_offset:
        log.roll()
    start_offset = max(_start_offset_by_time(log, now_ms), _start_offset_by_size(log))
    if start_offset <= log.start_offset:
        return 0
    return await log.advance_start(start_offset)


def deletable_offset(log: Log) -> int:
    """Nothing at or above this offset may be deleted by retention."""
    return min(log.flushed_offset, log.committed_offset())


def _start_offset_by_time(log: Log, now_ms: int) -> int:
    start_offset, limit = log.start_offset, deletable_offset(log)
    for segment, following in pairwise(log.segments):
        if following.base_offset > limit or not _is_expired(log, segment, now_ms):
            break
        start_offset = following.base_offset
    return start_offset


def _start_offset_by_size(log: Log) -> int:
    start_offset = log.start_offset
    if log.config.retention_bytes < 0:
        return start_offset
    excess, limit = log.size_bytes - log.config.retention_bytes, deletable_offset(log)
    for segment, following in pairwise(log.segments):
        excess -= segment.size
        if excess < 0 or following.base_offset > limit:
            break
        start_offset = following.base_offset
    return start_offset


def _is_expired(log: Log, segment: Segment, now_ms: int) -> bool:
    if log.config.retention_ms < 0 or (segment is log.active and not segment.size):
        return False
    return now_ms - segment.newest_ms > log.config.retention_ms
