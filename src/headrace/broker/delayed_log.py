"""The delayed log of one partition, `__delayed.T`-i, for one leadership: append events and read messages.

The leadership may end during any await, so callers call `ensure_led` after each one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from headrace.broker.partition import Partition
from headrace.broker.state_log import read_batches
from headrace.machines.delays_replay import UNPACKED_BYTES_MAX, batches
from headrace.model.errors import NotLeader, StorageFailure
from headrace.runtime.clock import Clock
from headrace.wire.batch import Record, parse_header
from headrace.wire.delayed_records import Event, build_event, pick

_GATHERED_AT_ONCE = 64 << 10


class DelayedLog:
    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._epoch = partition.leader_epoch
        self._clock = clock

    @property
    def is_led(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self._epoch

    def ensure_led(self) -> None:
        if not self.is_led:
            raise NotLeader(f"this broker is no longer the leader of {self.partition.topic}-{self.partition.index}")

    def append(self, event: Event) -> tuple[int, int]:
        """Append an event; return its offset, and the end offset that must be `committed`."""
        self.ensure_led()
        self.partition.ensure_enough()
        batch = build_event(event)
        appended = self.partition.append(memoryview(batch), parse_header(batch), event.at)
        return appended.base_offset, appended.end_offset

    async def committed(self, end_offset: int, seconds: float = inf) -> None:
        wait = self.partition.committed(end_offset, self._clock.monotonic() + seconds)
        if wait is not None:
            await wait
        self.ensure_led()

    async def read(self, offset: int, size_bytes: int, end_offset: int) -> tuple[bytes, int]:
        """Read whole batches; return them and their end offset."""
        found = await read_batches(self.partition, offset, end_offset, size_bytes)
        self.ensure_led()
        return found

    async def messages(self, offsets: Iterable[int], size_bytes_max: float = inf) -> dict[int, Record]:
        """Return the messages at these offsets that still exist, up to `size_bytes_max`, but at least one."""
        wanted = deque(sorted(offsets))
        found: dict[int, Record] = {}
        size_bytes = 0
        while wanted and size_bytes < size_bytes_max:
            first = wanted[0]
            if first < self.partition.log.start_offset:
                wanted.popleft()
                continue
            data, next_offset = await self.read(first, _GATHERED_AT_ONCE, self.partition.high_watermark)
            for batch, header in batches(data):
                while wanted and wanted[0] < header.base_offset:
                    wanted.popleft()  # a gap: the message was deleted
                here = []
                while wanted and wanted[0] <= header.last_offset:
                    here.append(wanted.popleft())
                if here:
                    for record in pick(batch, header, here, UNPACKED_BYTES_MAX):
                        found[record.offset] = record
                        size_bytes += len(record.value or b"") + len(record.key or b"")
            while wanted and wanted[0] < next_offset:
                wanted.popleft()
            if wanted and wanted[0] == first:
                raise StorageFailure(f"cannot read {self.partition.topic}-{self.partition.index} at offset {first}")
        return found
