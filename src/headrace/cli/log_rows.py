"""The rows of `headrace log dump` for each type of file: one per batch, record or entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

from headrace.cli.envelope import envelope_of
from headrace.cli.failure import CommandFailed
from headrace.cli.stored_batches import StoredBatch
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.storage.log.checkpoint import Checkpoint
from headrace.storage.segments.index import OffsetIndex, TimeIndex
from headrace.wire.batches.compression import NAMES

Row = dict[str, Any]

BATCH_COLUMNS = (
    *("base_offset", "last_offset", "records", "position", "size_bytes", "crc", "compression"),
    *("producer_id", "producer_epoch", "base_sequence", "transactional", "control", "max_timestamp"),
)
RECORD_COLUMNS = ("offset", "timestamp", "control", "key", "value", "headers")
OFFSET_COLUMNS = ("entry", "offset", "position")
TIME_COLUMNS = ("entry", "timestamp", "offset")
CHECKPOINT_COLUMNS = ("offset", "start_offset", "segments", "epochs", "state_bytes", "whole")


def batch_row(batch: StoredBatch) -> Row:
    header = batch.header
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "crc": "bad" if batch.fault else "ok",
        "compression": NAMES.get(header.compression, f"unknown {header.compression}"),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": _control(batch),
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "append" if header.is_log_append_time else "create",
    }


def record_rows(batch: StoredBatch) -> Iterator[Row]:
    """Return the records of a batch with a valid checksum, in the format of `consume --json` without the topic."""
    control = _control(batch)
    for record in batch.records():
        row = envelope_of(
            ConsumedRecord("", 0, record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        )
        del row["topic"], row["partition"]
        yield row | {"control": control, "batch": batch.header.base_offset}


def offset_index_rows(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for number, (offset, position) in _entries(path, OffsetIndex.ENTRY):
        yield {"entry": number, "offset": base + offset, "position": position}


def time_index_rows(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for number, (timestamp, offset) in _entries(path, TimeIndex.ENTRY):
        yield {"entry": number, "timestamp": timestamp, "offset": base + offset}


def checkpoint_rows(path: Path) -> Iterator[Row]:
    checkpoint = Checkpoint.decode(path.read_bytes())
    if checkpoint is None:
        yield {"whole": False}
        return
    yield {
        "offset": checkpoint.offset,
        "start_offset": checkpoint.start_offset,
        "segments": [mark.base_offset for mark in checkpoint.segments],
        "epochs": [f"{epoch}@{start}" for epoch, start in checkpoint.epochs],
        "state_bytes": len(checkpoint.state),
        "whole": True,
    }


DERIVED: dict[str, tuple[Callable[[Path], Iterator[Row]], tuple[str, ...]]] = {
    ".index": (offset_index_rows, OFFSET_COLUMNS),
    ".timeindex": (time_index_rows, TIME_COLUMNS),
    ".checkpoint": (checkpoint_rows, CHECKPOINT_COLUMNS),
}


def _control(batch: StoredBatch) -> str | None:
    """Describe a control batch; None for other batches."""
    if not batch.header.is_control:
        return None
    marker = batch.marker
    return "other" if marker is None else "commit" if marker.is_commit else "abort"


def _entries(path: Path, entry: Struct) -> Iterator[tuple[int, tuple[int, int]]]:
    data = path.read_bytes()
    yield from enumerate(entry.iter_unpack(data[: len(data) - len(data) % entry.size]))


def _base_offset(path: Path) -> int:
    if not path.stem.isdigit():
        raise CommandFailed(f"{path} is not an index: its name is not the base offset of a segment")
    return int(path.stem)
