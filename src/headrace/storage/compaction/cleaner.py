"""The cleaner of a data folder: chooses logs that compaction is due for, has them cleaned, and swaps the result in.

One pass at a time, the dirtiest log first. The pass itself runs in another process (see compaction) while the log is
written, read, trimmed and deleted as ever: so before the swap, on the loop and under the lock of the log's upkeep, it
is looked at again, and if the segments are not those that were cleaned the result is thrown away. A pass that failed
is tried again in the next round. Cleaned files count as unchecked: they come from another process, and so their
CRCs are checked here before anybody gets them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from headrace.model.errors import HeadraceError, StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.tasks import run_to_completion
from headrace.storage.compaction.compaction import (
    CompactionJob,
    CompactionResult,
    DamagedSegment,
    SettledBitmap,
    SourceSegment,
    compact,
)
from headrace.storage.compaction.swap import (
    DRAFTS,
    MANIFEST,
    CompactionManifest,
    complete_swap,
    exchange_names,
    remove_drafts,
    write_manifest,
)
from headrace.storage.config import StoreConfig
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.storage.log.flusher import Flusher
from headrace.storage.log.log import Log
from headrace.storage.segments.gaps import read_gaps
from headrace.storage.segments.scan import BadBatch
from headrace.storage.segments.segment import GAPS, NO_TIMESTAMP, Segment, file_name
from headrace.storage.store.space_guard import SpaceGuard

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SegmentToClean(NamedTuple):
    """A segment that a pass is to clean: where the next one begins, and about how much will be left of it."""

    segment: Segment
    end_offset: int
    expected_bytes: int


class CleaningPlan(NamedTuple):
    """What a pass would do: read all of these segments, of which so large a share is dirty. If it is given what is
    settled, that goes, and else it compacts."""

    chosen: list[SegmentToClean]
    dirty_share: float = 1.0
    is_due: bool = True
    settled: SettledBitmap | None = None

    @property
    def segments(self) -> list[Segment]:
        return [one.segment for one in self.chosen]

    @property
    def is_outdated(self) -> bool:
        return any(one.segment.dropped for one in self.chosen)


class NoRoomToClean(StorageFailure):
    """A pass writes anew what it keeps, before it can remove anything: there is not enough room for that."""


class CleaningFailed(StorageFailure):
    """A pass ended in a way that nobody expected. Only drafts have suffered."""


class LogCleaner:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        flusher: Flusher,
        config: StoreConfig,
        space: SpaceGuard,
        logs: Callable[[], Iterable[Log]],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._flusher = flusher
        self._config = config
        self._space = space
        self._logs = logs
        self._turn = asyncio.Lock()
        self.passes = 0
        self.passes_discarded = 0
        self.passes_failed = 0
        self.records_read = 0
        self.records_kept = 0
        self.bytes_read = 0
        self.bytes_written = 0

    async def run(self) -> None:
        """Clean what is due, for ever."""
        while True:
            await asyncio.sleep(self._config.cleaner_backoff_seconds)
            await self.clean_due()

    async def clean_due(self) -> None:
        """One round: until no log is due but those that failed in it."""
        for log in self._logs():
            _roll_overdue(log, self._clock.now_ms())
        failed: set[Log] = set()
        while (dirtiest := self._dirtiest(failed)) is not None:
            if not await self.clean(dirtiest):
                failed.add(dirtiest)

    async def clean(self, log: Log) -> bool:
        """One pass over this log; says whether it came to anything."""
        return await self.carry_out(log, partial(plan_cleaning, log))

    async def carry_out(self, log: Log, planned: Callable[[int], CleaningPlan | None]) -> bool:
        """One pass, as is planned at that time of the clock; says whether it came to anything."""
        async with self._turn:
            swapped = False
            try:
                swapped = await self._clean(log, planned)
            except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
                # A segment may have been deleted under the pass, or the whole log; all else is worth a word, too.
                self.passes_failed += 1
                logger.warning("compaction of %s: %s", log.folder, error)
            await self._disk.run(_discard_drafts, self._disk, log.folder)
            return swapped

    def _dirtiest(self, failed: set[Log]) -> Log | None:
        now_ms, best, dirtiest = self._clock.now_ms(), -1.0, None
        for log in self._logs():
            if log.config.compacts and log not in failed:
                plan = plan_cleaning(log, now_ms)
                if plan is not None and plan.is_due and plan.dirty_share > best:
                    best, dirtiest = plan.dirty_share, log
        return dirtiest

    async def _clean(self, log: Log, planned: Callable[[int], CleaningPlan | None]) -> bool:
        # The swap needs a checkpoint that knows all segments whole, and has forgotten what former passes dropped.
        await log.save_checkpoint()
        plan = planned(self._clock.now_ms())
        if plan is None:
            return False
        await self._space.measure()
        needed = sum(segment.size for segment in plan.segments)
        if self._space.free_bytes - needed < self._space.reserve_bytes:
            raise NoRoomToClean(f"{self._space.free_bytes} bytes are free, {needed} and the reserve may be needed")
        plan = planned(self._clock.now_ms())
        if plan is None:
            return False
        generation = log.generation
        try:
            outcome = await self.run_in_worker_process(compact, self._job(log, plan))
        except DamagedSegment as damage:
            if log.generation == generation:  # else it may be the cut that the pass has met
                _report_damage(log, plan, damage)
            raise
        if not await run_to_completion(_swap_segments(log, plan, generation, outcome.manifest)):
            self.passes_discarded += 1
            return False
        self._count(log, outcome)
        return True

    async def run_in_worker_process(self, work: Callable[..., T], job: object) -> T:
        """Within the cleaner's share of the disk."""
        try:
            return await self._disk.run_in_worker_process(
                work, job, bytes_per_second=self._config.cleaner_bytes_per_second
            )
        except (HeadraceError, FileNotFoundError, DamagedSegment):
            raise
        except Exception as error:  # of another process: it must not take this one with it
            raise CleaningFailed(f"{type(error).__name__}: {error}") from error

    def _job(self, log: Log, plan: CleaningPlan) -> CompactionJob:
        first, last = plan.chosen[0], plan.chosen[-1]
        return CompactionJob(
            log.folder,
            tuple(
                SourceSegment(SegmentCheckpoint.of(one.segment), one.end_offset, one.expected_bytes)
                for one in plan.chosen
            ),
            log.cleaned_offset,
            tuple(log.state.aborted(first.segment.base_offset, last.end_offset)),
            log.config,
            self._clock.now_ms(),
            not log.active.size,
            self._config.cleaner_map_bytes,
            log.state.producer_ids(),
            plan.settled,
        )

    def _count(self, log: Log, outcome: CompactionResult) -> None:
        self.passes += 1
        self.records_read += outcome.records_read
        self.records_kept += outcome.records_kept
        self.bytes_read += outcome.bytes_read
        self.bytes_written += outcome.bytes_written
        logger.info("compacted %s: %d of %d records are left", log.folder, outcome.records_kept, outcome.records_read)


def plan_cleaning(log: Log, now_ms: int) -> CleaningPlan | None:
    """What a pass over this log would do now; None if there is nothing dirty that it may touch."""
    if not log.usable:
        return None
    config = log.config
    bound = min(log.flushed_offset, log.compactable_offset())
    chosen: list[SegmentToClean] = []
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for segment, following in pairwise(log.segments):
        if following.base_offset > bound:
            break
        if following.base_offset <= log.cleaned_offset:
            clean_bytes += segment.size
        else:
            if config.min_compaction_lag_ms and now_ms - _newest_ms(segment) < config.min_compaction_lag_ms:
                break
            dirty_bytes += segment.size
            is_overdue = is_overdue or now_ms - segment.created_ms > config.max_compaction_lag_ms
        chosen.append(SegmentToClean(segment, following.base_offset, segment.size))
    if not dirty_bytes:
        return None
    share = dirty_bytes / (clean_bytes + dirty_bytes)
    return CleaningPlan(chosen, share, is_overdue or share > config.min_cleanable_dirty_ratio)


def _report_damage(log: Log, plan: CleaningPlan, damage: DamagedSegment) -> None:
    (segment,) = [segment for segment in plan.segments if segment.base_offset == damage.base_offset]
    if not segment.dropped and log.usable:
        log.quarantine(segment, BadBatch(damage.position, damage.reason), segment.base_offset)


def _newest_ms(segment: Segment) -> int:
    return segment.max_timestamp if segment.max_timestamp != NO_TIMESTAMP else segment.created_ms


def _roll_overdue(log: Log, now_ms: int) -> None:
    """The active segment is never cleaned: so it must not stay active for longer than its records may stay dirty."""
    if (
        log.config.compacts
        and log.usable
        and log.active.size
        and now_ms - log.active.created_ms > log.config.max_compaction_lag_ms
    ):
        log.roll()


async def _swap_segments(log: Log, plan: CleaningPlan, generation: int, manifest: CompactionManifest) -> bool:
    """False if the log is not any more what was cleaned."""
    async with log.maintenance_lock():
        log.ensure_usable()
        by_base = {segment.base_offset: segment for segment in plan.segments}
        removed_segments = [[by_base[base] for base in group.replaced] for group in manifest.groups]
        if log.generation != generation or any(segment.dropped for group in removed_segments for segment in group):
            return False
        if manifest.groups:
            await _replace_segments(log, removed_segments, manifest)
        log.cleaned_offset = max(log.cleaned_offset, manifest.cleaned_offset)
        return True


async def _replace_segments(log: Log, removed_segments: list[list[Segment]], manifest: CompactionManifest) -> None:
    disk, folder = log.disk, log.folder
    try:
        merged = await disk.run(_commit_manifest, disk, folder, manifest)
    except StorageFailure as error:
        if disk.exists(f"{folder}/{MANIFEST}"):
            log.fail(error)  # nobody knows whether the decision is durable: the next start will find out
        raise
    log.ensure_usable()  # else the decision stands, and the next start carries it out
    try:
        for group, old, new in zip(manifest.groups, removed_segments, merged, strict=True):
            log.replace_segments(old, new)
            exchange_names(disk, folder, group)
            await asyncio.sleep(0)
        log.checkpoint_offset = await disk.run(complete_swap, disk, folder, manifest)
    except (StorageFailure, FileNotFoundError) as error:
        log.fail(StorageFailure(f"the swap of cleaned segments: {error}"))
        raise
    if log.checkpoint_offset < 0:
        log.unsaved_bytes = max(log.unsaved_bytes, log.size_bytes)


def _commit_manifest(disk: Disk, folder: str, manifest: CompactionManifest) -> list[Segment]:
    """Make the decision durable; returns the new segments as they will be."""
    merged = []
    for group in manifest.groups:
        segment = group.mark.segment(disk, folder)
        name = file_name(segment.base_offset, GAPS)
        segment.gaps = read_gaps(disk, f"{folder}/{DRAFTS}/{name}", segment.base_offset)
        if segment.gaps is None:
            raise StorageFailure(f"a draft of {folder}/{name} was damaged before it could be used")
        merged.append(segment)
    write_manifest(disk, folder, manifest)
    return merged


def _discard_drafts(disk: Disk, folder: str) -> None:
    """Drafts that nobody will use; those of a decision that stands are for the next start."""
    with suppress(FileNotFoundError):  # the log may be being deleted
        if not disk.exists(f"{folder}/{MANIFEST}"):
            remove_drafts(disk, folder)
