"""What a data folder knows of its starts: the number of the last one, and of which broker of which cluster it was."""

from __future__ import annotations

import msgspec

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk

_NAME = "broker"


class BrokerMetadataFile(msgspec.Struct, frozen=True):
    epoch: int
    cluster_id: str
    node_id: int


def read_broker_metadata(disk: Disk, folder: str) -> BrokerMetadataFile | None:
    """None of a folder in which no broker was started yet. Blocks."""
    path = f"{folder}/{_NAME}"
    if not disk.exists(path):
        return None
    try:
        return msgspec.json.decode(disk.read(path), type=BrokerMetadataFile)
    except msgspec.MsgspecError as error:
        raise StorageFailure(
            f"{path} is damaged: {error}; if the other replicas are intact, remove it to replicate the logs again"
        ) from error


def write_broker_metadata(disk: Disk, folder: str, start: BrokerMetadataFile) -> None:
    """Durable on return. Blocks."""
    disk.write_atomically(f"{folder}/{_NAME}", msgspec.json.encode(start))
