"""Deleting what is older or more than a topic keeps, in whole segments and only what is durable.

The active segment goes only after it was rolled: when all of its records are too old it is rolled for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage import trimming
from headrace.storage.segment import NO_TIMESTAMP, Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log


async def delete_old(log: Log, now_ms: int) -> int:
    """Enforce retention.ms and retention.bytes; returns how many segments were removed."""
    if not log.usable or not log.deletes_old:
        return 0
    if _expired(log, log.active, now_ms) and log.flushed_offset == log.end_offset:
        log.roll()
    start_offset = max(_start_by_time(log, now_ms), _start_by_size(log))
    if start_offset <= log.start_offset:
        return 0
    return await trimming.advance_start(log, start_offset)


def _start_by_time(log: Log, now_ms: int) -> int:
    start_offset = log.start_offset
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if following.base_offset > log.flushed_offset or not _expired(log, segment, now_ms):
            break
        start_offset = following.base_offset
    return start_offset


def _start_by_size(log: Log) -> int:
    start_offset = log.start_offset
    if log.config.retention_bytes < 0:
        return start_offset
    excess = log.size_bytes - log.config.retention_bytes
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        excess -= segment.size
        if excess < 0 or following.base_offset > log.flushed_offset:
            break
        start_offset = following.base_offset
    return start_offset


def _expired(log: Log, segment: Segment, now_ms: int) -> bool:
    if log.config.retention_ms < 0 or (segment is log.active and not segment.size):
        return False
    newest = segment.max_timestamp if segment.max_timestamp != NO_TIMESTAMP else segment.created_ms
    return now_ms - newest > log.config.retention_ms
