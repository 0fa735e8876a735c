"""With retention.mode=acked a log keeps what a subscription may still need: how that is found, and what of it is done.

What is settled is read from the companion's log (the acks log), as far as that is committed, in the process apart: the
loop never sees more of it than a number for each segment. So every replica finds out by itself, and those that found
out earlier have less; what any subscription has not settled is on all of them.

Segments are cleaned when less than half of what they held last time is left, and with them small neighbours, so that a
few old messages end up in few files. The active segment is rolled for it when it is worth while.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from headrace.runtime.disk import Disk
from headrace.storage.compaction.cleaner import CleaningPlan, LogCleaner, SegmentToClean
from headrace.storage.compaction.compaction import DamagedSegment, SettledBitmap, whole_batches
from headrace.storage.config import MIB
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.storage.log.log import Log
from headrace.storage.segments.scan import BadBatch
from headrace.storage.segments.segment import Segment

if TYPE_CHECKING:
    from headrace.machines.queues.acks_replay import AcksReplay
    from headrace.machines.queues.settled_offsets import SettledOffsets
    from headrace.machines.queues.subscription import PartitionSubscription
    from headrace.runtime.worker_process import IoPace

ROLL_BYTES = MIB
SMALL_SEGMENT_SHARE = 4  # a neighbour is small if so many of its size fit into a segment
_UNPACKED_BYTES_MAX = 64 * MIB
_WHOLE_BYTES = 1 << 40  # larger than any snapshot


class SettledSurveyJob(msgspec.Struct, frozen=True):
    """The acks log, up to where it is committed, and between which offsets of the messages' log to count."""

    folder: str
    segments: tuple[SegmentCheckpoint, ...]
    start_offset: int
    end_offset: int
    bounds: tuple[int, ...]


class SettledSurvey(msgspec.Struct, frozen=True):
    """What all subscriptions have settled, and how much they have not between each bound and the next."""

    settled: SettledBitmap
    unsettled: tuple[int, ...]
    epoch: int = -1  # the leader epoch of the messages' log for which the acks log was last reconciled


def make_survey_job(log: Log, acks: Log, committed_offset: int) -> SettledSurveyJob:
    return SettledSurveyJob(
        acks.folder,
        tuple(map(SegmentCheckpoint.of, acks.segments)),
        acks.start_offset,
        min(committed_offset, acks.end_offset),
        (*(segment.base_offset for segment in log.segments), log.end_offset),
    )


def survey_settled(disk: Disk, pace: IoPace, job: SettledSurveyJob) -> SettledSurvey | None:
    """None if there are no subscriptions, or too little is left of the log to know them all. Runs apart, and blocks."""
    replay = _replay_from_snapshot(disk, pace, job)
    if replay is None or not replay.subscriptions:
        return None
    settled = _settled_by_all([_settled_by(one) for one in replay.subscriptions.values()], job.bounds[-1])
    offsets = settled.offsets()
    counts = [offsets.count_unsettled(bound) for bound in job.bounds]
    return SettledSurvey(settled, tuple(after - before for before, after in pairwise(counts)), replay.epoch)


def _replay_from_snapshot(disk: Disk, pace: IoPace, job: SettledSurveyJob) -> AcksReplay | None:
    """From the newest segment that has all that is needed."""
    from headrace.machines.queues.acks_replay import AcksReplay

    for at in reversed(range(len(job.segments))):
        start_offset = max(job.segments[at].base_offset, job.start_offset)
        if start_offset < job.end_offset:
            replay = AcksReplay(_make_subscription, is_beginning=start_offset == 0)
            for mark in job.segments[at:]:
                _replay(disk, pace, job, mark, replay)
            if replay.is_complete:
                return replay
    return None


def _replay(disk: Disk, pace: IoPace, job: SettledSurveyJob, mark: SegmentCheckpoint, replay: AcksReplay) -> None:
    from headrace.wire.batches.batch import parse_header, read_records
    from headrace.wire.state_records.acks_records import decode_event

    for batch in _read_batches(disk, job.folder, mark):
        pace(len(batch))
        header = parse_header(batch)
        if header.next_offset <= job.start_offset or header.is_control:
            continue
        if header.base_offset >= job.end_offset:
            return
        for record in read_records(memoryview(batch), header, _UNPACKED_BYTES_MAX):
            if record.offset >= job.start_offset:
                replay.take(record.offset, *decode_event(record.key, record.value))


def _read_batches(disk: Disk, folder: str, mark: SegmentCheckpoint) -> Iterator[bytes]:
    segment = mark.segment(disk, folder)
    if not segment.size:
        return
    if mark.has_gaps:
        segment.read_gaps()
    try:
        yield from whole_batches(segment.open(), segment.size, segment.base_offset, segment.gaps)
    except BadBatch as bad:
        raise DamagedSegment(segment.base_offset, bad.position, bad.reason) from bad
    finally:
        segment.close()


def _make_subscription(_name: str) -> PartitionSubscription:
    from headrace.machines.queues.subscription import PartitionSubscription
    from headrace.model.subscription_configs import SubscriptionConfig

    return PartitionSubscription(SubscriptionConfig(), lambda: 0.0)


def _settled_by(subscription: PartitionSubscription) -> SettledOffsets:
    """What a snapshot of it tells."""
    from headrace.machines.queues.settled_offsets import SettledOffsets

    settled = SettledOffsets(subscription.floor)
    for part in subscription.snapshot(0, _WHOLE_BYTES, 0):
        if part.settled:
            settled.add_slice(part.settled)
    return settled


def _settled_by_all(by_each: list[SettledOffsets], end_offset: int) -> SettledBitmap:
    """What nobody has still to do."""
    from headrace.machines.queues.settled_offsets import new_bitmap

    floor = min(end_offset, *(one.floor for one in by_each))
    above = new_bitmap()
    above.add_range(floor, end_offset)
    for one in by_each:
        for first, last in one.unsettled(floor, end_offset):
            above.remove_range(first, last + 1)
    above.run_optimize()
    return SettledBitmap(floor, above.serialize() if above else b"")


# On the loop


class RetentionSweep:
    """One log and its acks log. `_left` tells, by base offsets of segments, how much was not settled when a pass last
    met it; what no pass has met since the start of the broker counts as full."""

    def __init__(self, log: Log, acks: Log) -> None:
        self.log = log
        self.acks = acks
        self._left: dict[int, int] = {}
        self._seen = (-1, 0)  # how much was committed in the acks log, and how many segments there were

    async def look(
        self, cleaner: LogCleaner, committed_offset: int, *, leads: Callable[[], bool], rewrites: bool
    ) -> bool:
        """Do what there is to do; says whether the start of the log has moved, which is for whoever `leads`."""
        log, acks = self.log, self.acks
        seen = committed_offset, len(log.segments)
        if seen == self._seen or not log.usable or not acks.usable:
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
            self._note(plan, job, survey)
        self._seen = seen
        return has_moved

    def _roll(self, job: SettledSurveyJob, survey: SettledSurvey) -> None:
        """The active segment is never cleaned, nor does it go: if most of it is settled, it ends here."""
        base_offset, end_offset = job.bounds[-2:]
        active = self.log.active
        is_settled = survey.unsettled[-1] * 2 < end_offset - base_offset
        if is_settled and self.log.usable and active.base_offset == base_offset and active.size >= ROLL_BYTES:
            self.log.roll()

    def _plan(self, job: SettledSurveyJob, survey: SettledSurvey) -> CleaningPlan | None:
        """Which closed segments are worth a pass now: small ones only if there is another. None if there are none."""
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
        """The segments that a pass may touch and that will not go as a whole, each with the offset of the next."""
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
        """By base offset; a segment may have been merged from several."""
        held: dict[int, int] = {}
        bases = [segment.base_offset for segment, _ in closed]
        for base, left in self._left.items():
            at = bisect_right(bases, base) - 1
            if at >= 0:
                held[bases[at]] = held.get(bases[at], 0) + left
        return {base: held.get(base, end_offset - base) for base, (_, end_offset) in zip(bases, closed, strict=True)}

    def _note(self, plan: CleaningPlan, job: SettledSurveyJob, survey: SettledSurvey) -> None:
        """These segments hold so much now, and what they were merged from is not counted again."""
        unsettled = dict(zip(job.bounds, survey.unsettled, strict=False))
        bases = [one.segment.base_offset for one in plan.chosen]

        def is_replaced(base: int) -> bool:
            at = bisect_right(bases, base) - 1
            return at >= 0 and base < plan.chosen[at].end_offset

        kept = {base: n for base, n in self._left.items() if base >= job.bounds[0] and not is_replaced(base)}
        self._left = kept | {base: unsettled[base] for base in bases}


def _is_reconciled(survey: SettledSurvey, epoch: int) -> bool:
    """Whether what is settled holds for a log whose newest batch is of this leader epoch. After an unclean election
    other messages lie at offsets that were settled: they must stay until the leader has taken that back."""
    return survey.epoch >= epoch
