"""Scrub: check slowly, in the background, the batches that were not read since the start, so that damage is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.runtime.disk import File
from headrace.storage.config import MIB
from headrace.storage.errors import CorruptBatch
from headrace.storage.segments.scan import checked_batches
from headrace.storage.segments.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log.log import Log

STEP_BYTES = MIB
IDLE_SECONDS = 60.0


async def scrub_forever(logs: Callable[[], Iterable[Log]], bytes_per_second: int) -> None:
    """Check all unchecked bytes of these logs until cancelled, limited to a rate."""
    while True:
        for log in list(logs()):
            checked_bytes = await scrub_step(log)
            while checked_bytes:
                await asyncio.sleep(checked_bytes / bytes_per_second)
                checked_bytes = await scrub_step(log)
            await asyncio.sleep(0)
        await asyncio.sleep(IDLE_SECONDS)


async def scrub_step(log: Log) -> int:
    """Check the next unchecked range of a log. Returns its size; 0 if everything is checked."""
    if log.quarantined is not None or not log.usable:
        return 0
    for segment in log.segments:
        gap = segment.first_unchecked()
        if gap is not None:
            return await _check(log, segment, *gap)
    return 0


async def _check(log: Log, segment: Segment, start: int, end: int) -> int:
    generation = log.generation
    try:
        checked_to = await log.run_on_segment(_check_to, segment, start, end, damaged_from=segment.base_offset)
    except CorruptBatch:
        return 0
    if checked_to is None:
        return 0
    if log.generation == generation:
        segment.trust(start, checked_to)
    return checked_to - start


def _check_to(file: File, segment: Segment, start: int, end: int) -> int:
    """In a disk thread: check batches up to a step's size. Returns the end of the last one.

    No checksum covers the offset of a batch: the expected offset follows from the previous batch, and for the first one
    from the name of the segment.
    """
    position = start
    for at, header in checked_batches(file, start, end, None if start else segment.base_offset, segment.gaps):
        position = at + header.size_bytes
        if position - start >= STEP_BYTES:
            break
    return position
