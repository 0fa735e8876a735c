"""Retention for retention.mode=acked: remove messages that every subscription has settled.

- The settled offsets come from the committed part of the co-located acks log. A worker process reads it
  (`survey_settled`); the event loop gets only one number per segment.
- Each replica does this on its own, so some have removed more than others. Messages that any subscription has not
  settled are on all of them.
- A segment is cleaned when less than half of what the previous pass left is unsettled. Small neighbouring segments are
  cleaned with it, so that a few old messages end up in few files. The active segment is rolled first if that pays off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from headrace.runtime.disk import Disk, IoPace
from headrace.storage.compaction.cleaner import CleaningPlan, LogCleaner, SegmentToClean
from headrace.storage.compaction.compaction import SettledBitmap, read_segment
from headrace.storage.config import MIB
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.storage.log.log import Log
from headrace.storage.segments.segment import Segment
from headrace.wire.batches.batch import read_records

if TYPE_CHECKING:
    from headrace.machines.queues.acks_replay import AcksReplay
    from headrace.machines.queues.settled_offsets import SettledOffsets
    from headrace.machines.queues.subscription import PartitionSubscription

ROLL_BYTES = MIB
SMALL_SEGMENT_SHARE = 4  # a neighbour is small if this many of its size fit into one segment
_UNPACKED_BYTES_MAX = 64 * MIB
_SNAPSHOT_BYTES_MAX = 1 << 40  # larger than any snapshot


class SettledSurveyJob(msgspec.Struct, frozen=True):
    """The committed part of the acks log, and the offsets of the message log between which to count."""

    folder: str
    segments: tuple[SegmentCheckpoint, ...]
    start_offset: int
    end_offset: int
    bounds: tuple[int, ...]


class SettledSurvey(msgspec.Struct, frozen=True):
    """The offsets that all subscriptions have settled, and the number of others between each bound and the next."""

    settled: SettledBitmap
    unsettled: tuple[int, ...]
    epoch: int = -1  # the leader epoch of the message log for which the acks log was last reconciled


def make_survey_job(log: Log, acks: Log, committed_offset: int) -> SettledSurveyJob:
    return SettledSurveyJob(
        acks.folder,
        tuple(map(SegmentCheckpoint.of, acks.segments)),
        acks.start_offset,
        min(committed_offset, acks.end_offset),
        (*(segment.base_offset for segment in log.segments), log.end_offset),
    )


def survey_settled(disk: Disk, pace: IoPace, job: SettledSurveyJob) -> SettledSurvey | None:
    """None if there are no subscriptions, or the acks log no longer holds a snapshot of all of them.

    Blocks; runs in a worker process.
    """
    replay = _replay_from_snapshot(disk, pace, job)
    if replay is None or not replay.subscriptions:
        return None
    settled = _settled_by_all([_settled_by(one) for one in replay.subscriptions.values()], job.bounds[-1])
    return SettledSurvey(settled, count_unsettled(settled, job), replay.epoch)


def count_unsettled(settled: SettledBitmap, job: SettledSurveyJob) -> tuple[int, ...]:
    offsets = settled.offsets()
    counts = [offsets.count_unsettled(bound) for bound in job.bounds]
    return tuple(after - before for before, after in pairwise(counts))


def _replay_from_snapshot(disk: Disk, pace: IoPace, job: SettledSurveyJob) -> AcksReplay | None:
    """Replay from the newest segment that holds a complete snapshot."""
    from headrace.machines.queues.acks_replay import AcksReplay
    from headrace.machines.queues.subscription import PartitionSubscription
    from headrace.model.subscription_configs import SubscriptionConfig

    for at in reversed(range(len(job.segments))):
        start_offset = max(job.segments[at].base_offset, job.start_offset)
        if start_offset < job.end_offset:
            replay = AcksReplay(
                lambda _: PartitionSubscription(SubscriptionConfig(), lambda: 0.0), is_beginning=start_offset == 0
            )
            for mark in job.segments[at:]:
                _replay(disk, pace, job, mark, replay)
            if replay.is_complete:
                return replay
    return None


def _replay(disk: Disk, pace: IoPace, job: SettledSurveyJob, mark: SegmentCheckpoint, replay: AcksReplay) -> None:
    from headrace.wire.state_records.acks_records import decode_event

    for batch, header in read_segment(disk, pace, job.folder, mark):
        if header.next_offset <= job.start_offset or header.is_control:
            continue
        if header.base_offset >= job.end_offset:
            return
        for record in read_records(memoryview(batch), header, _UNPACKED_BYTES_MAX):
            if record.offset >= job.start_offset:
                replay.take(record.offset, *decode_event(record.key, record.value))


def _settled_by(subscription: PartitionSubscription) -> SettledOffsets:
    from headrace.machines.queues.settled_offsets import SettledOffsets

    settled = SettledOffsets(subscription.floor)
    for part in subscription.snapshot(0, _SNAPSHOT_BYTES_MAX, 0):
        if part.settled:
            settled.add_slice(part.settled)
    return settled


def _settled_by_all(by_each: list[SettledOffsets], end_offset: int) -> SettledBitmap:
    """The offsets below `end_offset` that every subscription has settled."""
    from headrace.machines.queues.settled_offsets import new_bitmap

    floor = min(end_offset, *(one.floor for one in by_each))
    above = new_bitmap()
    above.add_range(floor, end_offset)
    for one in by_each:
        for first, last in one.unsettled(floor, end_offset):
            above.remove_range(first, last + 1)
    above.run_optimize()
    return SettledBitmap(floor, above.serialize() if above else b"")


class RetentionSweep:
    """Acked retention of one log, on the event loop.

    `_left` maps base offsets of segments to the number of unsettled messages after the last pass over them. A segment
    without a pass since the start of the broker counts as full.
    """

    def __init__(self, log: Log, acks: Log) -> None:
        self.log = log
        self.acks = acks
        self._left: dict[int, int] = {}
        self._swept = (-1, 0)  # the committed offset of the acks log and the number of segments at the last sweep

    async def run(
        self, cleaner: LogCleaner, committed_offset: int, *, leads: Callable[[], bool], rewrites: bool
    ) -> bool:
        """Remove what is settled. True if the log start offset advanced, which only the leader does."""
        log, acks = self.log, self.acks
        swept = committed_offset, len(log.segments)
        if swept == self._swept or not log.usable or not acks.usable:
            return False
        generations, epoch = (log.generation, acks.generation), log.epochs.latest
        job = make_survey_job(log, acks, committed_offset)
        survey = await cleaner.run_in_worker_process(survey_settled, job)
        if survey is None or not log.usable or not _is_reconciled(survey, epoch):
            return False

        def is_outdated() -> bool:
            return (log.generation, acks.generation) != generations or log.epochs.latest != epoch

        if is_outdated():
            return False
        has_moved = leads() and survey.settled.floor > log.start_offset
        if has_moved:
            await log.advance_start(survey.settled.floor)
        self._roll(job, survey)
        plan = self._plan(job, survey) if rewrites else None
        if plan is not None:
            if not await cleaner.carry_out(log, lambda _: None if plan.is_outdated or is_outdated() else plan):
                return has_moved
            self._record_left(plan, job, survey)
        self._swept = swept
        return has_moved

    def _roll(self, job: SettledSurveyJob, survey: SettledSurvey) -> None:
        """Roll the active segment if most of it is settled: an active segment is neither cleaned nor removed."""
        base_offset, end_offset = job.bounds[-2:]
        active = self.log.active
        is_settled = survey.unsettled[-1] * 2 < end_offset - base_offset
        if is_settled and self.log.usable and active.base_offset == base_offset and active.size >= ROLL_BYTES:
            self.log.roll()

    def _plan(self, job: SettledSurveyJob, survey: SettledSurvey) -> CleaningPlan | None:
        """The closed segments worth a pass now; small ones only together with another. None if there are none."""
        unsettled = dict(zip(job.bounds, survey.unsettled, strict=False))
        closed = self._closed(job, survey)
        held = self._held(closed)
        small_bytes = self.log.config.segment_bytes // SMALL_SEGMENT_SHARE
        chosen: list[SegmentToClean] = []
        is_due = False
        for segment, end_offset in closed:
            left, before = unsettled[segment.base_offset], held[segment.base_offset]
            if left * 2 < before or segment.size < small_bytes:
                is_due = is_due or left * 2 < before
                chosen.append(SegmentToClean(segment, end_offset, segment.size * min(left, before) // max(before, 1)))
        return CleaningPlan(chosen, settled=survey.settled) if is_due else None

    def _closed(self, job: SettledSurveyJob, survey: SettledSurvey) -> list[tuple[Segment, int]]:
        """The segments that a pass may touch and that are not removed as a whole, each with the next base offset."""
        log = self.log
        bound = min(log.flushed_offset, log.compactable_offset(), job.bounds[-1])
        gone = max(log.start_offset, survey.settled.floor)
        counted = frozenset(job.bounds[:-1])
        return [
            (segment, following.base_offset)
            for segment, following in pairwise(log.segments)
            if gone < following.base_offset <= bound and segment.base_offset in counted
        ]

    def _held(self, closed: list[tuple[Segment, int]]) -> dict[int, int]:
        """How many messages each segment held after its last pass; a segment may have been merged from several."""
        held: dict[int, int] = {}
        bases = [segment.base_offset for segment, _ in closed]
        for base, left in self._left.items():
            at = bisect_right(bases, base) - 1
            if at >= 0:
                held[bases[at]] = held.get(bases[at], 0) + left
        return {base: held.get(base, end_offset - base) for base, (_, end_offset) in zip(bases, closed, strict=True)}

    def _record_left(self, plan: CleaningPlan, job: SettledSurveyJob, survey: SettledSurvey) -> None:
        """Record what the cleaned segments hold now, and forget those that they were merged from."""
        unsettled = dict(zip(job.bounds, survey.unsettled, strict=False))
        bases = [one.segment.base_offset for one in plan.chosen]

        def is_replaced(base: int) -> bool:
            at = bisect_right(bases, base) - 1
            return at >= 0 and base < plan.chosen[at].end_offset

        kept = {base: n for base, n in self._left.items() if base >= job.bounds[0] and not is_replaced(base)}
        self._left = kept | {base: unsettled[base] for base in bases}


def _is_reconciled(survey: SettledSurvey, epoch: int) -> bool:
    """Whether the settled offsets are valid for a log whose newest batch is of this leader epoch.

    After an unclean election other messages may be at offsets that were settled. They must stay until the leader has
    reconciled the acks log.
    """
    return survey.epoch >= epoch
