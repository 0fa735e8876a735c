"""The delayed log of one partition for one leadership, and the cleanup that reclaims its space.

- The leadership may end during any await, so callers call `ensure_leader` after each one.
- The leader advances the log start to the oldest waiting message.
- Above that, each replica cleans up independently, even while older messages wait: when its log has doubled, a worker
  process reads it up to the high watermark, and rewrites segments that consist mostly of completed messages without
  these, at the same offsets. Events are kept (see `DelayIndex.over`), so that the cleaned log results in the same
  index.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from math import inf

from headrace.broker.coordination.state_log import read_batches
from headrace.broker.partition import Partition
from headrace.machines.delays.delay_index import UNPACKED_BYTES_MAX, DelayIndex, replay
from headrace.model.errors import HeadraceError, NotLeader, StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, IoPace
from headrace.storage.compaction.cleaner import LogCleaner
from headrace.storage.compaction.compaction import DamagedSegment, SettledBitmap, read_segment
from headrace.storage.log.acked_retention import (
    RetentionSweep,
    SettledSurvey,
    SettledSurveyJob,
    count_unsettled,
    make_survey_job,
)
from headrace.storage.log.log import Log
from headrace.wire.batches.batch import BatchRecord, parse_header, split_batches
from headrace.wire.state_records.delayed_records import DelayedEvent, build_event, read_records_at

_READ_GAP_BYTES_MAX = 64 << 10


class PartitionTerm:
    """A partition for one leadership of this broker."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._epoch = partition.leader_epoch

    @property
    def is_leader_here(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self._epoch

    def ensure_leader(self) -> None:
        if not self.is_leader_here:
            raise NotLeader(f"this broker is no longer the leader of {self.partition.topic}-{self.partition.index}")


class DelayedLog(PartitionTerm):
    def __init__(self, partition: Partition, clock: Clock) -> None:
        super().__init__(partition)
        self._clock = clock

    def append(self, event: DelayedEvent) -> tuple[int, int]:
        """Append an event; return its offset, and the end offset that must be `committed`."""
        self.ensure_leader()
        self.partition.ensure_min_isr()
        batch = build_event(event)
        appended = self.partition.append(memoryview(batch), parse_header(batch), event.at)
        return appended.base_offset, appended.end_offset

    async def committed(self, end_offset: int, seconds: float = inf) -> None:
        wait = self.partition.committed(end_offset, self._clock.monotonic() + seconds)
        if wait is not None:
            await wait
        self.ensure_leader()

    async def read(self, offset: int, size_bytes: int, end_offset: int) -> tuple[bytes, int]:
        """Read whole batches; return them and their end offset."""
        found = await read_batches(self.partition, offset, end_offset, size_bytes)
        self.ensure_leader()
        return found

    async def messages(self, offsets: Iterable[int], size_bytes_max: float = inf) -> dict[int, BatchRecord]:
        """Return the messages at these offsets that still exist, up to `size_bytes_max`, but at least one."""
        wanted = deque(sorted(offsets))
        found: dict[int, BatchRecord] = {}
        size_bytes = 0
        while wanted and size_bytes < size_bytes_max:
            first = wanted[0]
            if first < self.partition.log.start_offset:
                wanted.popleft()
                continue
            data, next_offset = await self.read(first, _READ_GAP_BYTES_MAX, self.partition.high_watermark)
            for batch, header in split_batches(data):
                while wanted and wanted[0] < header.base_offset:
                    wanted.popleft()  # a gap: the message was deleted
                here = []
                while wanted and wanted[0] <= header.last_offset:
                    here.append(wanted.popleft())
                if here:
                    for record in read_records_at(batch, header, here, UNPACKED_BYTES_MAX):
                        found[record.offset] = record
                        size_bytes += len(record.value or b"") + len(record.key or b"")
            while wanted and wanted[0] < next_offset:
                wanted.popleft()
            if wanted and wanted[0] == first:
                raise StorageFailure(f"cannot read {self.partition.topic}-{self.partition.index} at offset {first}")
        return found


log = logging.getLogger(__name__)

SWEEP_BYTES_MIN = 128 << 20


async def check_all(sweeps: Mapping[Partition, DelayedLogSweep], cleaner: LogCleaner) -> None:
    for partition, sweep in sweeps.items():
        try:
            await sweep.check(cleaner, partition)
        except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
            # A segment may have been deleted or truncated meanwhile; log other errors as well.
            log.warning(
                "deleting released delayed messages failed partition=%s-%d error=%s",
                partition.topic,
                partition.index,
                error,
            )


class DelayedLogSweep(RetentionSweep):
    """The cleanup of one delayed log, which contains both messages and their events."""

    def __init__(self, delayed: Log) -> None:
        super().__init__(delayed, delayed)
        self._size_bytes = 0  # at the last check

    async def check(self, cleaner: LogCleaner, partition: Partition) -> None:
        delayed = self.log
        grown_bytes = delayed.size_bytes - self._size_bytes
        if not delayed.usable or grown_bytes < max(SWEEP_BYTES_MIN, self._size_bytes):
            return
        generation = delayed.generation
        job = make_survey_job(delayed, delayed, partition.high_watermark)
        survey = await cleaner.run_in_worker_process(survey_delayed, job)
        if delayed.generation != generation or not delayed.usable:
            return
        plan = self._plan(job, survey)

        def is_outdated() -> bool:
            return plan is None or plan.is_outdated or delayed.generation != generation

        if plan is not None and await cleaner.carry_out(delayed, lambda _: None if is_outdated() else plan):
            self._record_left(plan, job, survey)
        self._size_bytes = delayed.size_bytes


def survey_delayed(disk: Disk, pace: IoPace, job: SettledSurveyJob) -> SettledSurvey:
    """Find completed messages below the high watermark. Runs in a worker process and blocks."""
    delays = DelayIndex(job.start_offset, 0)
    for mark in job.segments:
        for batch, header in read_segment(disk, pace, job.folder, mark):
            if job.start_offset < header.next_offset <= job.end_offset:
                replay(delays, batch, job.end_offset)
    over = delays.over(job.start_offset)
    settled = SettledBitmap(job.start_offset, over.serialize() if over else b"")
    return SettledSurvey(settled, count_unsettled(settled, job))
