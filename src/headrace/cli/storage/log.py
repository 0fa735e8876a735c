"""`headrace log ...`: dump and verify the files of a data folder. `stray` has the commands that change a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any

import click

from headrace.cli.failure import FAILED, CommandFailed
from headrace.cli.output import (
    counted,
    output_option,
    print_json,
    print_rows,
    print_status,
    print_table,
    shortened,
    wants_json,
)
from headrace.cli.record_format import envelope_of
from headrace.cli.storage.data_folder import DataFolder, segments_in
from headrace.cli.storage.log_verifier import LogVerifier
from headrace.cli.storage.stored_batches import StoredBatch, UnreadableBatch, stored_batches
from headrace.cli.storage.stray import adopt, purge_stray, stray
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.model.errors import HeadraceError
from headrace.storage.log.checkpoint import Checkpoint
from headrace.storage.segments.index import OffsetIndex, TimeIndex
from headrace.storage.segments.segment import LOG
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


_TABLE_ROWS = 500  # per table, because a file may have millions of rows
_SHOWN_MAX = 61


@click.group()
def log() -> None:
    """Inspect a data folder: dump and verify segment files; adopt or purge stray logs."""


for _command in (stray, adopt, purge_stray):
    log.add_command(_command)

_data_option = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="headrace-data",
    show_default=True,
    help="The broker's data folder.",
)


@log.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@_data_option
@click.option("--topic", help="Dump this topic of the data folder instead of PATH.")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="With --topic.")
@click.option("--records", is_flag=True, help="Show records instead of batches.")
@click.option(
    "--from", "from_offset", type=click.IntRange(0), default=0, metavar="OFFSET", help="Start at this offset."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after this many rows.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@output_option
def dump(
    path: Path | None,
    *,
    data: Path,
    topic: str | None,
    partition: int,
    records: bool,
    from_offset: int,
    limit: int | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Dump the file PATH, all segments of the folder PATH, or those of a partition of --topic.

    Supports .log, .index, .timeindex and .checkpoint files. The exit code is 1 if a batch is damaged.
    """
    if (path is None) == (topic is None):
        raise click.UsageError("specify either PATH, or --topic with --data DIR and --partition")
    json_wanted = as_json or wants_json(output)
    if path is not None and path.suffix in DERIVED:
        rows_of, columns = DERIVED[path.suffix]
        _print(islice(rows_of(path), limit), columns, json_wanted)
        return 0
    if topic is not None:
        segments = segments_in(DataFolder(data).log(topic, partition).path)
    else:
        assert path is not None
        segments = _segments_at(path)
    reader = _SegmentReader(segments, from_offset)
    rows = reader.record_rows() if records else reader.batch_rows()
    _print(islice(rows, limit), RECORD_COLUMNS if records else BATCH_COLUMNS, json_wanted)
    return FAILED if reader.damaged else 0


@log.command()
@_data_option
@click.option("--topic", help="Only this topic.")
@output_option
def verify(data: Path, topic: str | None, output: str | None) -> int:
    """Check every batch, record and index entry of a data folder.

    Prints every defect with its position; the exit code is 1 if anything is damaged. Stop the broker first: while it
    runs, the end of a log that is being written may appear torn.
    """
    verifiers = []
    folder = DataFolder(data)
    if folder.in_use:
        print_status(f"a broker is using {folder.path}: the ends of its logs may appear torn")
    for found in folder.logs(topic):
        verifier = LogVerifier(found, folder.flushed_offset(found))
        verifier.run()
        verifiers.append(verifier)
    rows = [
        {
            "log": verifier.log.name,
            "verdict": "torn" if fault.torn else "damaged",
            "file": str(fault.path),
            "position": fault.position,
            "offset": fault.offset,
            "what": fault.what,
        }
        for verifier in verifiers
        for fault in verifier.faults
    ]
    if rows:
        print_rows(rows, ("log", "verdict", "file", "position", "offset", "what"), output)
    damaged = sum(not fault.torn for verifier in verifiers for fault in verifier.faults)
    print_status(
        f"{counted(len(verifiers), 'log')}, {counted(sum(one.segments for one in verifiers), 'segment')}, "
        f"{counted(sum(one.batches for one in verifiers), 'batch', 'batches')}, "
        f"{counted(sum(one.records for one in verifiers), 'record')}, "
        f"{counted(sum(one.size_bytes for one in verifiers), 'byte')} checked: "
        + (counted(damaged, "damaged place") if damaged else "no damage")
    )
    return FAILED if damaged else 0


class _SegmentReader:
    """Reads segment files from an offset on, and reports damage on stderr when it encounters it."""

    def __init__(self, segments: Sequence[Path], from_offset: int) -> None:
        self._segments = segments
        self._from_offset = from_offset
        self.damaged = False

    def batch_rows(self) -> Iterator[Row]:
        return map(batch_row, self._batches())

    def record_rows(self) -> Iterator[Row]:
        for batch in self._batches():
            if batch.fault is None:
                try:
                    yield from (row for row in record_rows(batch) if row["offset"] >= self._from_offset)
                except HeadraceError as error:
                    self._report_damage(f"the batch at offset {batch.header.base_offset}: {error.message}")

    def _batches(self) -> Iterator[StoredBatch]:
        for path in self._segments:
            try:
                for batch in stored_batches(path):
                    if batch.header.last_offset >= self._from_offset:
                        if fault := batch.fault:
                            self._report_damage(f"{path} at byte {batch.position}: {fault}")
                        yield batch
            except UnreadableBatch as bad:
                self._report_damage(f"{path} at byte {bad.position}: {bad.reason}")

    def _report_damage(self, what: str) -> None:
        self.damaged = True
        print_status(what)


def _segments_at(path: Path) -> Sequence[Path]:
    if path.is_dir():
        return segments_in(path)
    if path.suffix != LOG:
        raise click.UsageError(f"{path} is neither a folder nor one of .log, {', '.join(DERIVED)}")
    return [path]


def _print(rows: Iterable[Row], columns: Sequence[str], json_wanted: bool) -> None:
    if json_wanted:
        print_json(rows)
        return
    remaining = iter(rows)
    while page := [{name: _shown(value) for name, value in row.items()} for row in islice(remaining, _TABLE_ROWS)]:
        print_table(page, columns)


def _shown(value: Any) -> Any:
    """Shorten the bytes of a record to fit on one line of a table."""
    if isinstance(value, dict):
        value = f"base64:{value['base64']}"
    if isinstance(value, list):
        return ["=".join(str(_shown(part)) for part in pair) if isinstance(pair, list) else pair for pair in value]
    if not isinstance(value, str):
        return value
    return shortened(value, _SHOWN_MAX)
