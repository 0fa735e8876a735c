"""A data folder with known bytes, for tests that damage them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.sqlite import SqliteRegistry
from headrace.registry.topics import TopicRecords
from headrace.runtime.disk import SystemDisk
from headrace.storage.log.checkpoint import Checkpoint, SegmentCheckpoint
from headrace.storage.segments.index import OffsetIndex, TimeIndex
from headrace.storage.store.flushed_offsets import FlushedOffsets
from headrace.wire.batches.batch import BatchRecord, assign_offset_and_epoch, build_batch, parse_header

T = TypeVar("T")

TOPIC_ID = UUID(int=0xABCDEF)


def batch_of(*values: bytes, timestamp_ms: int = 1000, **options: int) -> bytearray:
    records = [BatchRecord(key=b"k", value=value, timestamp_ms=timestamp_ms) for value in values]
    return build_batch(records, **options)


class StoredLog:
    """Partition 0 of the topic orders in a data folder, flushed up to its end."""

    def __init__(self, data: Path, *segments: Sequence[bytearray]) -> None:
        self.data = data
        self.folder = data / "logs" / f"{TOPIC_ID.hex}-0"
        self.folder.mkdir(parents=True)
        self.paths: list[Path] = []
        self.positions: list[list[int]] = []
        self.end_offset = 0
        for batches in segments or ([batch_of(b"one", b"two"), batch_of(b"three"), batch_of(b"four")],):
            self._write(batches)
        asyncio.run(_register(data / "registry.db"))
        self.flush(self.end_offset)

    @property
    def first(self) -> Path:
        return self.paths[0]

    def _write(self, batches: Sequence[bytearray]) -> None:
        base = self.end_offset
        path = self.folder / f"{base:020d}.log"
        data, positions = bytearray(), []
        for batch in batches:
            assign_offset_and_epoch(memoryview(batch), self.end_offset, 0)
            positions.append(len(data))
            data += batch
            self.end_offset = parse_header(batch).next_offset
        path.write_bytes(data)
        self.paths.append(path)
        self.positions.append(positions)
        # The second batch is the one that is indexed.
        if len(batches) > 1:
            header = parse_header(batches[1])
            last = header.last_offset - base
            path.with_suffix(".index").write_bytes(OffsetIndex.ENTRY.pack(last, positions[1]))
            path.with_suffix(".timeindex").write_bytes(TimeIndex.ENTRY.pack(header.max_timestamp, last))

    def flush(self, offset: int) -> None:
        FlushedOffsets(SystemDisk(), str(self.data)).claim((TOPIC_ID, 0)).record(offset, 0, 0)

    def checkpoint(self, offset: int, size: int) -> Path:
        mark = SegmentCheckpoint(0, size, 0, -1, -1, -1, 0, 0, 0)
        path = self.folder / f"{offset:020d}.checkpoint"
        path.write_bytes(Checkpoint(offset, 0, [mark], [(0, 0)], b"state").encode())
        return path

    def spoil(self, path: Path, position: int, data: bytes = b"\xff") -> None:
        content = bytearray(path.read_bytes())
        content[position : position + len(data)] = data
        path.write_bytes(content)


async def _register(path: Path) -> None:
    async def run(work: Callable[[], T]) -> T:
        return work()

    registry = await SqliteRegistry.open(str(path), run)
    record = TopicRecord(name="orders", id=TOPIC_ID, partitions=1, created_ms=0)
    await TopicRecords(registry).create(record, [PartitionRecord(replicas=(1,), isr=(1,))])
    await registry.close()
