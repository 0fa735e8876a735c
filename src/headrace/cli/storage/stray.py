"""`headrace log stray`, `adopt` and `purge-stray`: manage logs that are not in the registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from headrace.cli.cluster_client import run
from headrace.cli.failure import CommandFailed
from headrace.cli.options import confirm, dry_run_option, yes_option
from headrace.cli.output import counted, output_option, print_rows, print_status
from headrace.cli.storage.log_inventory import LogInventory, broker_folders, lock_folders
from headrace.cli.storage.registry import (
    data_option,
    open_at,
    plan_for,
    print_plan,
    raise_producer_ids,
    registry_option,
    write_plan,
)
from headrace.machines.controller.registry_rebuild import RebuildPlan
from headrace.model.names import check_topic_name
from headrace.model.registry_records import TopicRecord
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.storage.store.stray_logs import STRAY, StrayLog, purge_strays, stray_logs
from headrace.storage.store.topic_files import read_topic_files

_COLUMNS = ("topic", "partition", "bytes", "id", "folder")
_all_option = click.option("--all", "is_all", is_flag=True, help="All stray logs.")


@click.command()
@data_option
@output_option
def stray(data: Path, output: str | None) -> None:
    """List the logs that are not in the registry."""
    print_rows([_row(folder, log, record) for folder, log, record in _strays(data)], _COLUMNS, output)


@click.command()
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@_all_option
@click.option("--as", "name", metavar="NAME", help="Rename the topic; only with a single TOPIC.")
@data_option
@registry_option
@dry_run_option
@output_option
def adopt(
    topics: Sequence[str],
    *,
    is_all: bool,
    name: str | None,
    data: Path,
    registry: str | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Add the topics of stray logs to the registry again; TOPIC is a name or an id.

    Stop the broker first. At its next start it moves the logs back and serves them. Topics that are co-located with
    TOPIC (subscriptions, delayed messages) are adopted as well.
    """
    if name is not None:
        check_topic_name(name)
    folders = broker_folders(data)
    with lock_folders(folders) as disk:
        inventory = LogInventory()
        chosen = _chosen(data, topics, is_all=is_all)
        for folder in folders:
            inventory.add_folder(disk, folder, [log for where, log, _ in chosen if where == folder])
        if name is not None:
            _rename(inventory, name)
        plan = run(_adopt(data, registry, inventory, disk, writes=not dry_run))
    print_plan(plan, inventory, output)
    if plan.is_empty:
        raise CommandFailed("no topic could be adopted; see above")
    print_status("no changes made (--dry-run)" if dry_run else "start the broker: it moves the logs back")


@click.command("purge-stray")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@_all_option
@data_option
@yes_option
@dry_run_option
@output_option
def purge_stray(
    topics: Sequence[str], *, is_all: bool, data: Path, yes: bool, dry_run: bool, output: str | None
) -> None:
    """Delete stray logs permanently; the broker may be running."""
    chosen = _chosen(data, topics, is_all=is_all)
    rows = [_row(folder, log, record) for folder, log, record in chosen]
    confirm(f"Delete {counted(len(chosen), 'stray log')} in {data}?", yes or dry_run)
    if not dry_run:
        for folder in broker_folders(data):
            purge_strays(SystemDisk(), str(folder), [log for where, log, _ in chosen if where == folder])
    print_rows(rows, _COLUMNS, output)
    print_status(f"{counted(len(chosen), 'stray log')} {'would be ' if dry_run else ''}deleted")


_Found = tuple[Path, StrayLog, TopicRecord | None]


def _strays(data: Path) -> list[_Found]:
    disk, found = SystemDisk(), []
    for folder in broker_folders(data):
        records = read_topic_files(disk, str(folder / STRAY))
        found += [(folder, log, records.get(log.topic_id)) for log in stray_logs(disk, str(folder))]
    return found


def _chosen(data: Path, topics: Sequence[str], *, is_all: bool) -> list[_Found]:
    if is_all == bool(topics):
        raise click.UsageError("specify topics or --all; `headrace log stray` lists the stray logs")
    found = _strays(data)
    if is_all:
        return found
    names = set(topics)
    ids = {log.topic_id for _, log, record in found if names & _names(log, record)}
    missing = names.difference(*(_names(log, record) for _, log, record in found))
    if missing:
        raise CommandFailed(f"no stray log of {', '.join(sorted(missing))} exists; `headrace log stray` lists them")
    return [one for one in found if one[1].topic_id in ids or (one[2] is not None and one[2].owner in ids)]


def _names(log: StrayLog, record: TopicRecord | None) -> set[str]:
    return {str(log.topic_id), log.topic_id.hex, *(() if record is None else (record.name,))}


def _rename(inventory: LogInventory, name: str) -> None:
    colocated = {record.id for record in inventory.topics.values() if record.owner is not None}
    owners = {topic_id for topic_id, _ in inventory.logs} - colocated
    if len(owners) != 1:
        raise click.UsageError("--as requires a single topic; adopt the others with separate commands")
    (topic_id,) = owners
    known = inventory.topics.get(topic_id)
    if known is None:  # written by an older version, or damaged: use defaults for everything except the name
        known = TopicRecord(name=name, id=topic_id, partitions=1, created_ms=SystemClock().now_ms())
    for one in [record for record in inventory.topics.values() if record.owner == topic_id]:
        inventory.topics[one.id] = replace(one, name=one.name.removesuffix(known.name) + name)
    inventory.topics[topic_id] = replace(known, name=name)


async def _adopt(
    data: Path, url: str | None, inventory: LogInventory, disk: SystemDisk, *, writes: bool
) -> RebuildPlan:
    async with open_at(data, url, disk) as registry:
        plan = await plan_for(registry, inventory, adopts=True)
        plan.raised = {key: epoch for key, epoch in plan.raised.items() if key in inventory.logs}
        if writes:
            await raise_producer_ids(registry, inventory)
            await write_plan(registry, plan)
        return plan


def _row(folder: Path, log: StrayLog, record: TopicRecord | None) -> dict[str, Any]:
    path = folder / STRAY / log.name
    return {
        "topic": None if record is None else record.name,
        "partition": log.partition,
        "bytes": sum(file.stat().st_size for file in path.iterdir()),
        "id": str(log.topic_id),
        "folder": str(path),
    }
