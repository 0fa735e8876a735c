"""Reclaim the space of completed messages in delayed logs, even while older messages still wait.

The leader advances the log start to the oldest waiting message. Above that, each replica cleans up independently: when
its log has doubled, a worker process reads it up to the high watermark, and rewrites segments that consist mostly of
completed messages without these, at the same offsets. Events are kept (see `Delays.over`), so that loading the cleaned
log results in the same index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.machines.delays import Delays
from headrace.machines.delays_replay import replay
from headrace.model.errors import HeadraceError
from headrace.runtime.disk import Disk
from headrace.storage.cleaner import Cleaner
from headrace.storage.compaction import DamagedSegment, Settled, whole_batches
from headrace.storage.log import Log
from headrace.storage.scan import BadBatch
from headrace.storage.settling import Survey, SurveyJob, Sweep, survey_job
from headrace.wire.batch import parse_header

if TYPE_CHECKING:
    from headrace.runtime.apart import Pace

log = logging.getLogger(__name__)

SWEEP_BYTES_MIN = 128 << 20


class Sweeps:
    def __init__(self, cleaner: Cleaner) -> None:
        self._cleaner = cleaner
        self._sweeps: dict[Partition, DelayedSweep] = {}

    async def look(self, replicas: Iterable[Partition]) -> None:
        """Check all given replicas once."""
        self._sweeps = {partition: self._sweeps.get(partition) or DelayedSweep(partition.log) for partition in replicas}
        for partition, sweep in list(self._sweeps.items()):
            try:
                await sweep.look_at(self._cleaner, partition)
            except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
                # A segment may have been deleted or truncated meanwhile; log other errors as well.
                log.warning(
                    "deleting released delayed messages failed partition=%s-%d error=%s",
                    partition.topic,
                    partition.index,
                    error,
                )


class DelayedSweep(Sweep):
    """The cleanup of one delayed log, which contains both messages and their events."""

    def __init__(self, delayed: Log) -> None:
        super().__init__(delayed, delayed)
        self._size_bytes = 0  # at the last check

    async def look_at(self, cleaner: Cleaner, partition: Partition) -> None:
        delayed = self.log
        grown_bytes = delayed.size_bytes - self._size_bytes
        if not delayed.usable or grown_bytes < max(SWEEP_BYTES_MIN, self._size_bytes):
            return
        generation = delayed.generation
        job = survey_job(delayed, delayed, partition.high_watermark)
        survey = await cleaner.run_apart(survey_delayed, job)
        if delayed.generation != generation or not delayed.usable:
            return
        plan = self._plan(job, survey)

        def is_outdated() -> bool:
            return plan is None or plan.is_outdated or delayed.generation != generation

        if plan is not None and await cleaner.carry_out(delayed, lambda _: None if is_outdated() else plan):
            self._note(plan, job, survey)
        self._size_bytes = delayed.size_bytes


def survey_delayed(disk: Disk, pace: Pace, job: SurveyJob) -> Survey:
    """Find completed messages below the high watermark. Runs in a worker process and blocks."""
    delays = Delays(job.start_offset, 0)
    for mark in job.segments:
        segment = mark.segment(disk, job.folder)
        if not segment.size:
            continue
        if mark.has_gaps:
            segment.read_gaps()
        try:
            for batch in whole_batches(segment.open(), segment.size, segment.base_offset, segment.gaps):
                pace(len(batch))
                header = parse_header(batch)
                if job.start_offset < header.next_offset <= job.end_offset:
                    replay(delays, batch, job.end_offset)
        except BadBatch as bad:
            raise DamagedSegment(segment.base_offset, bad.position, bad.reason) from bad
        finally:
            segment.close()
    over = delays.over(job.start_offset)
    settled = Settled(job.start_offset, over.serialize() if over else b"")
    offsets = settled.offsets()
    counts = [offsets.count_unsettled(bound) for bound in job.bounds]
    return Survey(settled, tuple(after - before for before, after in pairwise(counts)))
