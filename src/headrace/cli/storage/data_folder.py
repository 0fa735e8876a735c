"""Inspect a data folder from outside the broker: its contents, and whether a broker is using it.

This module never writes, locks or repairs anything, so that damaged data stays as it is for recovery and analysis.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from headrace.cli.failure import CommandFailed
from headrace.model.errors import StorageFailure
from headrace.registry.interface import RegistryUnavailable
from headrace.registry.sqlite import SqliteRegistry
from headrace.registry.topics import TopicRecords
from headrace.runtime.disk import LOCK_NAME, SystemDisk
from headrace.storage.segments.segment import LOG
from headrace.storage.store.flushed_offsets import NAME as FLUSHED_NAME
from headrace.storage.store.flushed_offsets import FlushedOffsets
from headrace.storage.store.log_store import LOG_FOLDER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of one partition; `topic` is None if the registry has no topic with this id."""

    path: Path
    topic_id: UUID
    partition: int
    topic: str | None

    @property
    def name(self) -> str:
        return f"{self.topic or f'(deleted topic {self.topic_id})'}[{self.partition}]"


def segments_in(folder: Path) -> Sequence[Path]:
    """List the segment files of a log in order."""
    return sorted(path for path in folder.iterdir() if path.suffix == LOG and path.stem.isdigit())


class DataFolder:
    def __init__(self, path: Path) -> None:
        if not (path / "logs").is_dir():
            raise CommandFailed(
                f"{path} is not a data folder: it has no subfolder logs; specify another one with --data"
            )
        self.path = path

    @property
    def in_use(self) -> bool:
        """Whether a broker is using the folder now."""
        try:
            descriptor = os.open(self.path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @cached_property
    def topics(self) -> Mapping[UUID, str]:
        """The names of all existing topics by id."""
        path = self.path / "registry.db"
        if not path.exists() and self.path.name.startswith("broker-"):
            path = self.path.parent / "registry.db"  # shared by `headrace serve --brokers N`
        if not path.exists():
            return {}
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                return asyncio.run(_topics(connection))
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"cannot read the registry {path}: {error}") from error

    def logs(self, topic: str | None = None) -> Sequence[LogFolder]:
        """List all logs, or those of one topic, which must exist, sorted by name and partition."""
        found = []
        for path in (self.path / "logs").iterdir():
            if named := LOG_FOLDER.fullmatch(path.name):
                topic_id = UUID(hex=named[1])
                found.append(LogFolder(path, topic_id, int(named[2]), self.topics.get(topic_id)))
        if topic is not None:
            found = [log for log in found if log.topic == topic]
            if not found:
                raise CommandFailed(
                    f"{self.path} has no topic {topic!r}; its topics are {', '.join(sorted(self.topics.values()))}"
                )
        return sorted(found, key=lambda log: (log.name, log.partition))

    def log(self, topic: str, partition: int) -> LogFolder:
        for log in self.logs(topic):
            if log.partition == partition:
                return log
        raise CommandFailed(f"topic {topic!r} has no partition {partition} in {self.path}")

    def flushed_offset(self, log: LogFolder) -> int | None:
        """Return the offset up to which the log was known to be on disk, or None if that is unknown."""
        if self._flushed is None:
            return None
        point = self._flushed.claim((log.topic_id, log.partition)).point
        return None if point is None else point.offset

    @cached_property
    def _flushed(self) -> FlushedOffsets | None:
        if not (self.path / FLUSHED_NAME).exists():
            return None
        try:
            return FlushedOffsets(SystemDisk(), str(self.path))
        except StorageFailure:
            return None  # a read-only copy of a data folder


async def _topics(connection: sqlite3.Connection) -> Mapping[UUID, str]:
    async def run(work: Callable[[], T]) -> T:
        return work()

    return {record.id: record.name for record in await TopicRecords(SqliteRegistry(connection, run)).load()}
