"""The log cleaner of a data folder: choose logs that are due for compaction, clean them, swap in the result.

- One pass runs at a time, the dirtiest log first. A pass that failed is repeated in the next round.
- The pass runs in a worker process (see `compaction`) while the log is written, read, truncated and deleted as usual.
  So before the swap, under the log's maintenance lock, the cleaner checks that the segments are still those that were
  cleaned, and discards the result otherwise.
- Cleaned files count as unchecked, because another process wrote them: their CRCs are checked before they are served.
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
from headrace.runtime.tasks import runs_to_completion
from headrace.storage.compaction import swap
from headrace.storage.compaction.compaction import (
    CompactionJob,
    CompactionResult,
    DamagedSegment,
    SettledBitmap,
    SourceSegment,
    compact,
)
from headrace.storage.compaction.swap import DRAFTS, MANIFEST, CompactionManifest
from headrace.storage.config import StoreConfig
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.storage.log.log import Log
from headrace.storage.segments.gaps import read_gaps
from headrace.storage.segments.scan import BadBatch
from headrace.storage.segments.segment import GAPS, Segment, file_name
from headrace.storage.store.space_guard import SpaceGuard

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SegmentToClean(NamedTuple):
    """A segment for a pass to clean, the base offset of the next one, and about how many bytes will be kept."""

    segment: Segment
    end_offset: int
    expected_bytes: int


class CleaningPlan(NamedTuple):
    """The input of a pass: the segments to read, and the share of them that is dirty. With `settled`, the pass removes
    settled records; otherwise it compacts by key."""

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
    """There is not enough free space for a pass, which writes what it keeps before it removes anything."""


class CleaningFailed(StorageFailure):
    """A pass ended with an unexpected error. Only its drafts are affected."""


class LogCleaner:
    def __init__(
        self, disk: Disk, clock: Clock, config: StoreConfig, space: SpaceGuard, logs: Callable[[], Iterable[Log]]
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._config = config
        self._space = space
        self._logs = logs
        self._pass_lock = asyncio.Lock()
        self.passes = 0
        self.passes_discarded = 0
        self.passes_failed = 0
        self.records_read = 0
        self.records_kept = 0
        self.bytes_read = 0
        self.bytes_written = 0

    async def run(self) -> None:
        """Clean due logs until cancelled."""
        while True:
            await asyncio.sleep(self._config.cleaner_backoff_seconds)
            await self.clean_due()

    async def clean_due(self) -> None:
        """Run one round: clean until the only due logs are those that failed in this round."""
        for log in self._logs():
            _roll_overdue(log, self._clock.now_ms())
        failed: set[Log] = set()
        while (dirtiest := self._dirtiest(failed)) is not None:
            if not await self.clean(dirtiest):
                failed.add(dirtiest)

    async def clean(self, log: Log) -> bool:
        """Run one compaction pass over a log. True if its result was swapped in."""
        return await self.carry_out(log, partial(plan_cleaning, log))

    async def carry_out(self, log: Log, planned: Callable[[int], CleaningPlan | None]) -> bool:
        """Run one pass; `planned` returns the plan for the current time. True if the result was swapped in."""
        async with self._pass_lock:
            swapped = False
            try:
                swapped = await self._clean(log, planned)
            except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
                # A segment or the whole log may have been deleted during the pass.
                self.passes_failed += 1
                logger.warning("compaction failed log=%s error=%s", log.folder, error)
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
        # The swap needs a checkpoint that holds all segments as a whole, and no transactions that earlier passes
        # removed.
        await log.save_checkpoint()
        plan = planned(self._clock.now_ms())
        if plan is None:
            return False
        await self._space.measure()
        needed = sum(segment.size for segment in plan.segments)
        if self._space.free_bytes - needed < self._space.reserve_bytes:
            raise NoRoomToClean(
                f"{self._space.free_bytes} bytes are free; the pass may need {needed} in addition to the reserve"
            )
        plan = planned(self._clock.now_ms())
        if plan is None:
            return False
        generation = log.generation
        try:
            outcome = await self.run_in_worker_process(compact, self._job(log, plan))
        except DamagedSegment as damage:
            if log.generation == generation:  # otherwise the pass may have read a truncated segment
                _report_damage(log, plan, damage)
            raise
        if not await _swap_segments(log, plan, generation, outcome.manifest):
            self.passes_discarded += 1
            return False
        self._count(log, outcome)
        return True

    async def run_in_worker_process(self, work: Callable[..., T], job: object) -> T:
        """Call `work(disk, pace, job)` in the worker process, at the cleaner's disk rate."""
        try:
            return await self._disk.run_in_worker_process(
                work, job, bytes_per_second=self._config.cleaner_bytes_per_second
            )
        except (HeadraceError, FileNotFoundError, DamagedSegment):
            raise
        except Exception as error:  # an unexpected error of the worker must not stop the broker
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
        kept, read = outcome.records_kept, outcome.records_read
        logger.info("log compacted log=%s records_kept=%d records_read=%d", log.folder, kept, read)


def plan_cleaning(log: Log, now_ms: int) -> CleaningPlan | None:
    """The compaction pass that this log needs now; None if it has no dirty segment that may be compacted."""
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
            if config.min_compaction_lag_ms and now_ms - segment.newest_ms < config.min_compaction_lag_ms:
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


def _roll_overdue(log: Log, now_ms: int) -> None:
    """Roll an active segment older than max.compaction.lag.ms, because an active segment is never cleaned."""
    if (
        log.config.compacts
        and log.usable
        and log.active.size
        and now_ms - log.active.created_ms > log.config.max_compaction_lag_ms
    ):
        log.roll()


@runs_to_completion
async def _swap_segments(log: Log, plan: CleaningPlan, generation: int, manifest: CompactionManifest) -> bool:
    """False if the log is no longer the one that was cleaned."""
    async with log.maintenance_lock:
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
            log.fail(error)  # whether the manifest is durable is unknown: the next start finds out
        raise
    log.ensure_usable()  # if not usable, the next start carries the swap out
    try:
        for group, old, new in zip(manifest.groups, removed_segments, merged, strict=True):
            log.replace_segments(old, new)
            swap.exchange_names(disk, folder, group)
            await asyncio.sleep(0)
        log.checkpoint_offset = await disk.run(swap.complete_swap, disk, folder, manifest)
    except (StorageFailure, FileNotFoundError) as error:
        log.fail(StorageFailure(f"swapping in cleaned segments failed: {error}"))
        raise
    if log.checkpoint_offset < 0:
        log.unsaved_bytes = max(log.unsaved_bytes, log.size_bytes)


def _commit_manifest(disk: Disk, folder: str, manifest: CompactionManifest) -> list[Segment]:
    """Commit the swap; returns the new segments."""
    merged = []
    for group in manifest.groups:
        segment = group.mark.segment(disk, folder)
        name = file_name(segment.base_offset, GAPS)
        segment.gaps = read_gaps(disk, f"{folder}/{DRAFTS}/{name}", segment.base_offset)
        if segment.gaps is None:
            raise StorageFailure(f"the draft of {folder}/{name} is damaged")
        merged.append(segment)
    swap.write_manifest(disk, folder, manifest)
    return merged


def _discard_drafts(disk: Disk, folder: str) -> None:
    """Remove drafts, unless a manifest commits their use at the next start."""
    with suppress(FileNotFoundError):  # the log may have been deleted
        if not disk.exists(f"{folder}/{MANIFEST}"):
            swap.remove_drafts(disk, folder)
