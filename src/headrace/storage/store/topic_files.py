"""The topic records in a data folder: name, id, partition count and configs of every topic with a log in it.

    <data>/topics/<topic id, hex>.json      crc32 of the second line, then the record as JSON

- The files duplicate the registry, so that a lost registry can be rebuilt from the data folders.
- Each file is replaced atomically, soon after the registry changed or the topic's first log was created. Every start
  writes the files that are missing or out of date.
- The functions block; the methods of `TopicFiles` do not.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from uuid import UUID
from zlib import crc32

import msgspec

from headrace.model.registry_records import TopicRecord
from headrace.runtime.disk import Disk

logger = logging.getLogger(__name__)

TOPICS = "topics"
TOPIC_FILES_PER_CALL = 64
TOPIC_FILE = re.compile(r"([0-9a-f]{32})\.json")

_decoder = msgspec.json.Decoder(TopicRecord)


class TopicFiles:
    """The topic files of one data folder; `records` is their content."""

    def __init__(self, disk: Disk, data: str, records: dict[UUID, TopicRecord]) -> None:
        self.records = records
        self._disk = disk
        self._folder = f"{data}/{TOPICS}"

    async def keep(self, records: Iterable[TopicRecord]) -> None:
        """Write the records that have changed, durably."""
        changed = [record for record in records if self.records.get(record.id) != record]
        for begin in range(0, len(changed), TOPIC_FILES_PER_CALL):
            chunk = changed[begin : begin + TOPIC_FILES_PER_CALL]
            await self._disk.run(_write_all, self._disk, self._folder, chunk)
            self.records.update((record.id, record) for record in chunk)

    async def drop(self, topic_ids: Iterable[UUID]) -> None:
        """Remove the files of topics that have no log in this folder any more."""
        dropped = [topic_id for topic_id in topic_ids if self.records.pop(topic_id, None) is not None]
        if dropped:
            await self._disk.run(_remove_all, self._disk, self._folder, dropped)


def topic_file_name(topic_id: UUID) -> str:
    return f"{topic_id.hex}.json"


def read_topic_files(disk: Disk, folder: str) -> dict[UUID, TopicRecord]:
    """The records in a folder. A damaged file is logged and skipped."""
    records = {}
    for name in disk.list(folder) if disk.exists(folder) else ():
        if found := TOPIC_FILE.fullmatch(name):
            record = decode_topic_file(disk.read(f"{folder}/{name}"))
            if record is None or record.id != UUID(hex=found[1]):
                logger.warning("topic file damaged, skipped file=%s/%s", folder, name)
            else:
                records[record.id] = record
    return records


def remove_topic_file(disk: Disk, folder: str, topic_id: UUID) -> None:
    path = f"{folder}/{topic_file_name(topic_id)}"
    if disk.exists(path):
        disk.remove(path)


def _write_all(disk: Disk, folder: str, records: Iterable[TopicRecord]) -> None:
    disk.make_directory(folder)
    for record in records:
        disk.write_atomically(f"{folder}/{topic_file_name(record.id)}", encode_topic_file(record))


def _remove_all(disk: Disk, folder: str, topic_ids: Iterable[UUID]) -> None:
    for topic_id in topic_ids:
        remove_topic_file(disk, folder, topic_id)


def encode_topic_file(record: TopicRecord) -> bytes:
    line = msgspec.json.encode(record)
    return b"%08x\n%s\n" % (crc32(line), line)


def decode_topic_file(data: bytes) -> TopicRecord | None:
    """None if the file is damaged."""
    checksum, _, line = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % crc32(line):
        return None
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
