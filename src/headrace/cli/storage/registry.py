"""`headrace registry ...`: rebuild the registry from the logs and topic files of stopped brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from headrace.cli.cluster_client import run
from headrace.cli.failure import CommandFailed
from headrace.cli.output import counted, output_option, print_rows, print_status
from headrace.cli.storage.log_inventory import LogInventory, broker_folders, lock_folders
from headrace.machines.controller.leadership import raise_leader_epoch
from headrace.machines.controller.registry_rebuild import PRODUCER_ID_MARGIN, RebuildPlan, plan_rebuild
from headrace.registry.brokers import CLUSTER_ID_KEY, advance_operation, decode_number, epoch_key
from headrace.registry.counters import PRODUCER_IDS_KEY
from headrace.registry.interface import Create, Delete, Registry
from headrace.registry.topics import (
    PARTITIONS_KEY,
    TopicRecords,
    change_partition,
    decode_partition,
    parse_partition_key,
    remove_partitions,
    tombstone_key,
)
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.server.open_registry import open_registry
from headrace.server.settings import ServeSettings

data_option = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default="headrace-data",
    show_default=True,
    help="The data folder of a broker, or of --brokers N.",
)
registry_option = click.option(
    "--registry", metavar="URL", help="As for `headrace serve`; default: registry.db in the data folder."
)


@click.group()
def registry() -> None:
    """Rebuild the registry from the logs."""


@registry.command()
@click.option("--from-logs", is_flag=True, required=True, help="Rebuild from the topic files and logs in --data.")
@data_option
@registry_option
@click.option("--yes", "-y", is_flag=True, help="Write to the registry; default: only show the changes.")
@output_option
def rebuild(from_logs: bool, data: Path, registry: str | None, yes: bool, output: str | None) -> None:  # noqa: ARG001
    """Add missing topics, partitions and counters to the registry.

    \b
    headrace registry rebuild --from-logs --data DIR          show what would be written
    headrace registry rebuild --from-logs --data DIR --yes    write it

    Stop the brokers first. The command creates a registry if there is none, and completes one that was restored from an
    older backup; existing entries are kept. Configs of groups and brokers, tokens and drained brokers are stored only
    in the registry and cannot be rebuilt.
    """
    folders = broker_folders(data)
    with lock_folders(folders) as disk:
        inventory = LogInventory()
        for folder in folders:
            inventory.add_folder(disk, folder)
        plan = run(_rebuild(data, registry, inventory, disk, writes=yes))
    print_plan(plan, inventory, output)
    if not yes:
        print_status("no changes made; repeat with --yes to write them")


async def _rebuild(
    data: Path, url: str | None, inventory: LogInventory, disk: SystemDisk, *, writes: bool
) -> RebuildPlan:
    if not writes and url is None and not (data / "registry.db").exists():
        return plan_rebuild([], {}, inventory.topics, inventory.logs, epoch_floor=inventory.epoch_max)
    async with open_at(data, url, disk) as registry:
        plan = await plan_for(registry, inventory)
        if writes:
            await _restore_counters(registry, inventory)
            await write_plan(registry, plan)
        return plan


@asynccontextmanager
async def open_at(data: Path, url: str | None, disk: SystemDisk) -> AsyncIterator[Registry]:
    if data.name.startswith("broker-") and (data.parent / "registry.db").exists():
        data = data.parent  # shared by `headrace serve --brokers N`
    registry = await open_registry(ServeSettings(data=str(data), registry=url), disk, SystemClock())
    try:
        yield registry
    finally:
        await registry.close()


async def plan_for(registry: Registry, inventory: LogInventory, *, adopts: bool = False) -> RebuildPlan:
    """Plan the rebuild. A topic that was deleted by a client is restored only if an operator adopts it."""
    entries = await registry.entries(PARTITIONS_KEY)
    known = await TopicRecords(registry).load()
    ids = {record.id for record in known}
    places = {key: decode_partition(entry) for entry in entries if (key := parse_partition_key(entry.key))[0] in ids}
    deleted = (
        set() if adopts else await TopicRecords(registry).deleted({topic_id for topic_id, _ in inventory.logs} - ids)
    )
    logs = {key: ends for key, ends in inventory.logs.items() if key[0] not in deleted}
    plan = plan_rebuild(known, places, inventory.topics, logs, epoch_floor=inventory.epoch_max)
    plan.problems += [f"topic id {one}: skipped, because a client deleted the topic" for one in sorted(deleted)]
    return plan


async def write_plan(registry: Registry, plan: RebuildPlan) -> None:
    """Write the plan. It can be repeated after a crash: partially written topics are removed first."""
    topics = TopicRecords(registry)
    for (topic_id, index), epoch in plan.raised.items():
        await change_partition(registry, topic_id, index, partial(raise_leader_epoch, epoch=epoch))
    for known, total, records in plan.grown:
        await topics.add_partitions(known.name, known.id, total, records)
    for record, records in plan.created:
        await remove_partitions(registry, record.id)
        tombstone = await registry.get(tombstone_key(record.id))
        if tombstone is not None:
            await registry.commit([Delete(tombstone.key, tombstone.version)])
        await topics.create(record, records)


async def _restore_counters(registry: Registry, inventory: LogInventory) -> None:
    """Raise the counters, so that ids that were allocated before are not allocated again."""
    found = {start.cluster_id for start in inventory.starts}
    entry = await registry.get(CLUSTER_ID_KEY)
    if len(found | ({entry.value.decode()} if entry else set())) > 1:
        raise CommandFailed(
            "the data folders and the registry belong to different clusters; check --data and --registry"
        )
    if entry is None:
        await registry.commit([Create(CLUSTER_ID_KEY, found.pop().encode())])
    for start in inventory.starts:
        await _raise_counter(registry, epoch_key(start.node_id), start.epoch)
    await raise_producer_ids(registry, inventory)


async def raise_producer_ids(registry: Registry, inventory: LogInventory) -> None:
    """Raise the producer id counter above all ids that occur in logs or were allocated by the data folders."""
    used = max(inventory.producer_id_max + 1, inventory.producer_id_floor)
    await _raise_counter(registry, PRODUCER_IDS_KEY, used + PRODUCER_ID_MARGIN)


async def _raise_counter(registry: Registry, key: str, at_least: int) -> None:
    entry = await registry.get(key)
    if entry is None or decode_number(entry) < at_least:
        await registry.commit([advance_operation(key, entry, at_least)])


def print_plan(plan: RebuildPlan, inventory: LogInventory, output: str | None) -> None:
    rows: list[dict[str, Any]] = [_row("create", one.name, one.partitions, str(one.id)) for one, _ in plan.created]
    rows += [_row("grow", one.name, total, str(one.id)) for one, total, _ in plan.grown]
    print_rows(rows, ("action", "topic", "partitions", "id"), output)
    if plan.raised:
        print_status(f"the leader epoch of {counted(len(plan.raised), 'partition')} in the registry is raised")
    for line in (*plan.problems, *inventory.damaged):
        print_status(line)


def _row(action: str, name: str, partitions: int, topic_id: str) -> dict[str, Any]:
    return {"action": action, "topic": name, "partitions": partitions, "id": topic_id}
