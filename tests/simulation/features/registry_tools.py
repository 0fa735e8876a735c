"""Run `headrace registry rebuild` and `headrace log adopt` on the data folders of a simulated cluster.

The commands read real files, so the necessary files of each simulated disk are written to a temporary folder. The
commands write to a separate registry with the given keys; the caller installs the result. Files have no timestamps on a
simulated disk, so of several files of a topic the first broker's counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from headrace.cli.storage.log_inventory import LogInventory
from headrace.cli.storage.registry import _restore_counters, plan_for, raise_producer_ids, write_plan
from headrace.model.registry_records import TopicRecord
from headrace.registry.interface import RegistryEntry
from headrace.runtime.disk import Disk, SystemDisk
from headrace.storage.segments.segment import LOG
from headrace.storage.store.stray_logs import STRAY, STRAY_FOLDER, stray_logs
from headrace.storage.store.topic_files import TOPIC_FILE, TOPICS
from headrace.testkit.broker import DATA
from headrace.testkit.cluster import SimCluster
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble

Names = Mapping[UUID, str]
"""The names of topics whose file was not written before the crash; an operator passes them with --as."""


async def rebuild(cluster: SimCluster, entries: Mapping[str, RegistryEntry], names: Names) -> dict[str, RegistryEntry]:
    """Return the registry after `headrace registry rebuild --from-logs --yes`. All brokers must be down."""
    registry, inventory = _registry_of(entries), _inventory(cluster, names, is_adoption=False)
    plan = await plan_for(registry, inventory)
    await _restore_counters(registry, inventory)
    await write_plan(registry, plan)
    return registry.state.entries


async def adopt(cluster: SimCluster, entries: Mapping[str, RegistryEntry], names: Names) -> dict[str, RegistryEntry]:
    """Return the registry after `headrace log adopt --all`. All brokers must be down."""
    registry, inventory = _registry_of(entries), _inventory(cluster, names, is_adoption=True)
    plan = await plan_for(registry, inventory, adopts=True)
    plan.raised = {key: epoch for key, epoch in plan.raised.items() if key in inventory.logs}
    await raise_producer_ids(registry, inventory)
    await write_plan(registry, plan)
    return registry.state.entries


def _registry_of(entries: Mapping[str, RegistryEntry]) -> SimRegistry:
    state = SimRegistryEnsemble()
    state.entries = dict(entries)
    return SimRegistry(state)


def _inventory(cluster: SimCluster, names: Names, *, is_adoption: bool) -> LogInventory:
    inventory, disk = LogInventory(), SystemDisk()
    with TemporaryDirectory() as parent:
        for node_id, broker in cluster.brokers.items():
            folder = Path(parent) / str(node_id)
            if broker.host.disk.exists(f"{DATA}/broker"):  # skip a new disk on which no broker has started yet
                _export(broker.host.disk, folder)
                inventory.add_folder(disk, folder, stray_logs(disk, str(folder)) if is_adoption else None)
    for topic_id, _ in inventory.logs:
        if topic_id not in inventory.topics and topic_id in names:
            record = TopicRecord(name=names[topic_id], id=topic_id, partitions=1, created_ms=0)
            inventory.topics[topic_id] = record
    return inventory


def _export(disk: Disk, folder: Path) -> None:
    for name in (TOPICS, STRAY, "logs"):
        (folder / name).mkdir(parents=True)
    for name in ("broker", "producer-ids"):
        if disk.exists(f"{DATA}/{name}"):
            (folder / name).write_bytes(disk.read(f"{DATA}/{name}"))
    for parent in (TOPICS, STRAY, "logs"):
        for name in disk.list(f"{DATA}/{parent}") if disk.exists(f"{DATA}/{parent}") else ():
            source, target = f"{DATA}/{parent}/{name}", folder / parent / name
            if TOPIC_FILE.fullmatch(name):
                target.write_bytes(disk.read(source))
                os.utime(target, (0, 0))
            elif STRAY_FOLDER.fullmatch(name):
                target.mkdir()
                for file in disk.list(source):
                    if file.endswith(LOG):
                        (target / file).write_bytes(disk.read(f"{source}/{file}"))
