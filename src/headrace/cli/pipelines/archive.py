"""`headrace archive ...`: inspect and maintain archives without a broker and without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.failure import FAILED
from headrace.cli.options import ParsedType, dry_run_option
from headrace.cli.output import Row, counted, local_time, output_option, print_rows, print_status
from headrace.cli.pipelines.archived_records import open_archive
from headrace.pipeline.settings import parse_size
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from headrace.archive import ArchiveCatalogue
    from headrace.archive.manifest import ArchivedFile

_PARTITION_COLUMNS = ("topic", "partition", "first", "last", "records", "files", "bytes", "oldest", "newest")
_FILE_COLUMNS = ("topic", "partition", "first", "last", "records", "bytes", "oldest", "newest", "file")


@click.group()
def archive() -> None:
    """Show, verify and compact archives of topics."""


_path_argument = click.argument("path", metavar="PATH")
_topic_argument = click.argument("topic", required=False)


@archive.command()
@_path_argument
@_topic_argument
@click.option("--files", is_flag=True, help="Show one line per file instead of one per partition.")
@output_option
def show(path: str, topic: str | None, files: bool, output: str | None) -> None:
    """Show the contents of the archive at PATH, which is a folder or a URI such as s3://bucket/archive."""
    rows_of = _file_rows if files else _partition_rows
    rows = [row for catalogue in _catalogues(path, topic) for row in rows_of(catalogue)]
    print_rows(rows, _FILE_COLUMNS if files else _PARTITION_COLUMNS, output)


@archive.command()
@_path_argument
@_topic_argument
@click.option("--repair", is_flag=True, help="Complete interrupted writes and clean up left-over files.")
@output_option
def verify(path: str, topic: str | None, repair: bool, output: str | None) -> int:
    """Read every file of the archive at PATH and compare it with the manifest.

    Prints every defect. The exit code is 1 if rows are lost or altered. --repair deletes nothing that might be the only
    copy of a record: it moves files without a manifest entry to _headrace/aside.
    """
    files = records = size = damaged = 0
    rows: list[Row] = []
    catalogues = _catalogues(path, topic)
    from headrace.archive import verification

    for catalogue in catalogues:
        if repair and (cleared := verification.repair(catalogue, SystemClock().now_ms())):
            print_status(f"{catalogue.topic}: {counted(cleared, 'left-over file')} cleaned up")
        for flaw in verification.verify(catalogue):
            rows.append({"topic": flaw.topic, "file": flaw.file, "damaged": flaw.damaged, "what": flaw.what})
            damaged += flaw.damaged
        for gap in verification.gaps(catalogue):
            what = f"offsets {gap.first} to {gap.last} of partition {gap.partition} were never archived"
            rows.append({"topic": gap.topic, "file": None, "damaged": False, "what": what})
        for file in catalogue.all_files:
            files, records, size = files + 1, records + file.records, size + file.bytes
    if rows:
        print_rows(rows, ("topic", "damaged", "file", "what"), output)
    verdict = f"{damaged} damaged" if damaged else "no damage"
    print_status(
        f"{counted(files, 'file')}, {counted(records, 'record')}, {counted(size, 'byte')} of {path} checked: {verdict}"
    )
    return FAILED if damaged else 0


@archive.command()
@_path_argument
@_topic_argument
@click.option(
    "--target",
    type=ParsedType("size", parse_size),
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="The maximum size of a merged file.",
)
@dry_run_option
@output_option
def compact(path: str, topic: str | None, target: int, dry_run: bool, output: str | None) -> None:
    """Merge adjacent small files of the archive at PATH.

    Readers that use the manifest see every row exactly once at any time. Readers that list the folder may briefly miss
    the rows that are being merged.
    """
    rows: list[Row] = []
    catalogues = _catalogues(path, topic)
    from headrace.archive import compaction

    for catalogue in catalogues:
        if not catalogue.storage.exclusive and not dry_run:
            print_status(f"{path} has no writer lock: make sure that no other process archives {catalogue.topic} now")
        if dry_run:
            rows += [_merge_row(catalogue, parts) for parts in compaction.mergeable_runs(catalogue, target)]
        else:
            rows += [_merge_row(catalogue, merge.parts) for merge in compaction.compact(catalogue, target)]
            compaction.sweep(catalogue, SystemClock().now_ms())
    print_rows(rows, ("topic", "partition", "first", "last", "files", "bytes"), output)
    print_status(
        f"{counted(sum(row['files'] for row in rows), 'file')} {'would become' if dry_run else 'became'} {len(rows)}"
    )


def _catalogues(path: str, topic: str | None) -> Iterator[ArchiveCatalogue]:
    found = open_archive(path)
    return map(found.existing, found.topics() if topic is None else [topic])


def _partition_rows(catalogue: ArchiveCatalogue) -> Iterator[Row]:
    for partition in catalogue.partitions:
        files = catalogue.all_files.of(partition)
        times = [t for file in files for t in (file.timestamp_min, file.timestamp_max) if t is not None]
        yield {
            "topic": catalogue.topic,
            "partition": partition,
            "first": files[0].first,
            "last": files[-1].last,
            "records": sum(file.records for file in files),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "oldest": local_time(min(times, default=None)),
            "newest": local_time(max(times, default=None)),
        }


def _file_rows(catalogue: ArchiveCatalogue) -> Iterator[Row]:
    for file in catalogue.all_files:
        yield {
            "topic": catalogue.topic,
            "partition": file.partition,
            "first": file.first,
            "last": file.last,
            "records": file.records,
            "bytes": file.bytes,
            "oldest": local_time(file.timestamp_min),
            "newest": local_time(file.timestamp_max),
            "sha256": file.sha256,
            "file": file.name,
        }


def _merge_row(catalogue: ArchiveCatalogue, parts: Sequence[ArchivedFile]) -> Row:
    return {
        "topic": catalogue.topic,
        "partition": parts[0].partition,
        "first": parts[0].first,
        "last": parts[-1].last,
        "files": len(parts),
        "bytes": sum(part.bytes for part in parts),
    }
