"""Collect the logs and topic files in the data folders of stopped brokers.

Every batch is read and its checksum verified, so that a damaged header does not determine which producer ids were used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from headrace.broker.cluster.membership import BrokerMetadataFile, read_broker_metadata
from headrace.cli.data_folder import segments_in
from headrace.cli.failure import CommandFailed
from headrace.cli.stored_batches import UnreadableBatch, stored_batches
from headrace.machines.controller.registry_rebuild import LogEnd, LogKey
from headrace.model.registry_records import TopicRecord
from headrace.registry.counters import read_producer_id_floor
from headrace.runtime.disk import SystemDisk
from headrace.storage.store.data_folder import LOG_FOLDER
from headrace.storage.store.stray import STRAY, StrayLog, stray_logs
from headrace.storage.store.topic_files import TOPICS, decode_topic_file


def broker_folders(data: Path) -> list[Path]:
    """Return the folder itself, or the broker folders of `headrace serve --brokers N`."""
    folders = [data] if (data / "logs").is_dir() else sorted(path.parent for path in data.glob("broker-*/logs"))
    if not folders:
        raise CommandFailed(f"{data} is not a data folder: it has no subfolder logs; specify another one with --data")
    return folders


@contextmanager
def lock_folders(folders: Sequence[Path]) -> Iterator[SystemDisk]:
    """Lock the folders, so that no broker uses them."""
    disk = SystemDisk()
    try:
        for folder in folders:
            disk.lock(str(folder))
        yield disk
    finally:
        disk.close()


class LogInventory:
    """The logs and topics found. `topics` has the newest file of each topic; `damaged` lists unreadable data."""

    def __init__(self) -> None:
        self.starts: list[BrokerMetadataFile] = []
        self.topics: dict[UUID, TopicRecord] = {}
        self.logs: dict[LogKey, dict[int, LogEnd]] = {}
        self.producer_id_max = -1
        self.producer_id_floor = 0
        self.epoch_max = -1
        self.damaged: list[str] = []
        self._written: dict[UUID, float] = {}

    def add_folder(self, disk: SystemDisk, folder: Path, strays: Sequence[StrayLog] | None = None) -> None:
        """Add all logs of a broker, or only the given stray ones."""
        start = read_broker_metadata(disk, str(folder))
        if start is None:
            raise CommandFailed(
                f"the file {folder}/broker with the node id is missing; start the broker once to create it"
            )
        self.starts.append(start)
        self.producer_id_floor = max(self.producer_id_floor, read_producer_id_floor(disk, str(folder)))
        for path in (*folder.glob(f"{TOPICS}/*.json"), *folder.glob(f"{STRAY}/*.json")):
            self._add_topic(path)
        chosen = stray_logs(disk, str(folder)) if strays is None else strays
        for log in chosen:
            if LOG_FOLDER.fullmatch(log.name):  # skips further stray copies of the same partition
                self._add_log(log.key, start.node_id, folder / STRAY / log.name)
        for path in (folder / "logs").iterdir() if strays is None else ():
            if found := LOG_FOLDER.fullmatch(path.name):
                self._add_log((UUID(hex=found[1]), int(found[2])), start.node_id, path)

    def _add_topic(self, path: Path) -> None:
        record, written = decode_topic_file(path.read_bytes()), path.stat().st_mtime
        if record is None:
            self.damaged.append(f"{path} is damaged and was ignored")
        elif written > self._written.get(record.id, -1):
            self.topics[record.id], self._written[record.id] = record, written

    def _add_log(self, key: LogKey, node_id: int, path: Path) -> None:
        epoch, end = -1, 0
        for segment in segments_in(path):
            end = max(end, int(segment.stem))
            try:
                for batch in stored_batches(segment):
                    if batch.fault is not None:
                        self.damaged.append(f"{segment} at byte {batch.position}: {batch.fault}")
                        break
                    header, marker = batch.header, batch.marker
                    epoch, end = max(epoch, header.leader_epoch), header.next_offset
                    self.producer_id_max = max(self.producer_id_max, header.producer_id)
                    if marker is not None:
                        self.epoch_max = max(self.epoch_max, marker.coordinator_epoch)
            except UnreadableBatch as bad:
                self.damaged.append(f"{segment} at byte {bad.position}: {bad.reason}")
        self.epoch_max = max(self.epoch_max, epoch)
        self.logs.setdefault(key, {})[node_id] = LogEnd(epoch, end)
