"""A data folder as it lies on disk, seen from outside the broker: what is in it, and whether a broker uses it.

Nothing here writes, locks or mends: what is found is left as it is, for recovery or for whoever wants to look at it.
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

from headrace.cli.failure import Failure
from headrace.model.errors import StorageFailure
from headrace.registry.interface import RegistryUnavailable
from headrace.registry.sqlite import SqliteRegistry
from headrace.registry.topics import Topics
from headrace.runtime.disk import LOCK_NAME, SystemDisk
from headrace.storage.flushed import NAME as FLUSHED_NAME
from headrace.storage.flushed import FlushedOffsets, LogKey
from headrace.storage.segment import LOG
from headrace.storage.store import LOG_FOLDER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of one partition; `topic` is None if the registry knows no topic of this id."""

    path: Path
    topic_id: UUID
    partition: int
    topic: str | None

    @property
    def name(self) -> str:
        return f"{self.topic or f'(deleted topic {self.topic_id})'}[{self.partition}]"

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.partition

    def segments(self) -> Sequence[Path]:
        """The segment files, in order."""
        return segments_in(self.path)


def segments_in(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == LOG and path.stem.isdigit())


class DataFolder:
    def __init__(self, path: Path) -> None:
        if not (path / "logs").is_dir():
            raise Failure(f"{path} is not a data folder: it has no folder logs; name another with --data")
        self.path = path

    @property
    def in_use(self) -> bool:
        """Whether a broker runs on it at this moment."""
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
        """The names of the topics that exist, by id."""
        path = self.path / "registry.db"
        if not path.exists() and self.path.name.startswith("broker-"):
            path = self.path.parent / "registry.db"  # of `headrace serve --brokers N`
        if not path.exists():
            return {}
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                return asyncio.run(_topics(connection))
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"The registry {path} cannot be read: {error}") from error

    def logs(self, topic: str | None = None) -> Sequence[LogFolder]:
        """All logs, or those of one topic, which must be there, by name and partition."""
        found = []
        for path in (self.path / "logs").iterdir():
            if named := LOG_FOLDER.fullmatch(path.name):
                topic_id = UUID(hex=named[1])
                found.append(LogFolder(path, topic_id, int(named[2]), self.topics.get(topic_id)))
        if topic is not None:
            found = [log for log in found if log.topic == topic]
            if not found:
                raise Failure(
                    f"{self.path} holds no topic {topic!r}; it holds {', '.join(sorted(self.topics.values()))}"
                )
        return sorted(found, key=lambda log: (log.name, log.partition))

    def log(self, topic: str, partition: int) -> LogFolder:
        for log in self.logs(topic):
            if log.partition == partition:
                return log
        raise Failure(f"topic {topic!r} has no partition {partition} in {self.path}")

    def flushed_offset(self, key: LogKey) -> int | None:
        """How far a log was known to be on disk; None if that cannot be told."""
        if self._flushed is None:
            return None
        point = self._flushed.claim(key).point
        return None if point is None else point.offset

    @cached_property
    def _flushed(self) -> FlushedOffsets | None:
        if not (self.path / FLUSHED_NAME).exists():
            return None
        try:
            return FlushedOffsets(SystemDisk(), str(self.path))
        except StorageFailure:
            return None  # a copy that may only be read


async def _topics(connection: sqlite3.Connection) -> Mapping[UUID, str]:
    async def run(work: Callable[[], T]) -> T:
        return work()

    return {record.id: record.name for record in await Topics(SqliteRegistry(connection, run)).load()}
