"""Shards and their coordinators: the state of one partition, for as long as this broker leads it in one leader epoch.

Groups, transactions, subscriptions, delayed messages and dedup windows have the same life cycle:

    leadership gained   begin     create the shard, and load it in the background
    loaded              -         serve requests; before, they wait or fail with a retriable error
    leadership lost     end       remove the shard, cancel its load, and close it: waiting requests fail
    write failed        reload    like `end`, and then like `begin` after a pause, in the same leadership
    shutdown            stop      cancel all loads and close all shards; no shard is created any more

Invariants:

- A partition has at most one shard. The shard of an earlier leadership is removed and closed before its successor is
  created: a shard registers itself with its `Partition`, and a late `close` would undo the registration of the
  successor.
- `begin` and `end` change the shards within the call that changes the leadership, without an await. A lookup never
  returns the shard of an ended leadership; callers repeat the lookup after every await.
- An outdated load never publishes its result. Removing a shard cancels its load, so no further line of it runs. A new
  leader of the partition loads the state again.
- `end` removes the shard of the given `Partition` object only. The partition of a recreated topic is another object
  with the same name, and its leadership may begin before the old one ends.
- A shard with an empty log is loaded from the start, so the first request for a new topic does not fail.
- A load ends without an error if the leadership is lost. If the stored state is damaged, the shard decides what still
  works, but never serves a part of the state as if it were the whole. Any other error of a load is a bug and stops the
  broker.
- `now_ms` is an `AnchoredClock`: a jump of the wall clock does not expire sessions, transactions, leases or dedup ids.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar

from headrace.broker.coordination.state_log import StateLog
from headrace.broker.partition import Partition
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.runtime.clock import AnchoredClock, Clock
from headrace.runtime.inline_start import switch_to_task

_LOADING_SECONDS = 5.0  # how long a request waits for a load before it fails with a retriable error


class Shard:
    """The state of one partition for one leadership."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_loaded = self.has_no_records

    @property
    def has_no_records(self) -> bool:
        log = self.partition.log
        return log.quarantined is None and log.start_offset == log.end_offset

    async def load(self) -> None:
        """Rebuild the state from the log, then set `is_loaded`. Raise `NotLeader` or `NotCoordinator` if the leadership
        is lost meanwhile."""
        raise NotImplementedError

    def close(self, error: HeadraceError) -> None:
        """Fail all waiting and later requests with this error. The state stays in the log. May be called again."""

    def tick(self) -> None:
        """Do periodic maintenance. Called while the shard is loaded."""


K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Shard)


class ShardedCoordinator(ABC, Generic[K, S]):
    """The shards of all partitions that this broker leads, by key. Iterates over the loaded ones."""

    not_leader: ClassVar[type[HeadraceError]] = NotLeader
    shutting_down: ClassVar[type[HeadraceError]] = NotLeader

    def __init__(self, clock: Clock, tick_seconds: float = 0.0) -> None:
        self.now_ms = AnchoredClock(clock).now_ms
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._ticked_at = clock.monotonic()
        self._shards: dict[K, S] = {}
        self._loads: dict[K, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[S]:
        return (shard for shard in self._shards.values() if shard.is_loaded)

    @property
    def is_loaded(self) -> bool:
        return all(shard.is_loaded for shard in self._shards.values())

    @abstractmethod
    def _key_of(self, partition: Partition) -> K | None:
        """Return the key of the partition's shard, or None if partitions of this topic have none."""

    @abstractmethod
    def _create_shard(self, partition: Partition) -> S | None:
        """Return a shard for the leadership that begins, or None if the partition needs none."""

    # Life cycle

    def begin(self, partition: Partition) -> None:
        """A leadership of this broker for the partition begins."""
        key = self._key_of(partition)
        if key is not None:
            self._remove(key)
            self._begin(key, partition)

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        key = self._key_of(partition)
        shard = None if key is None else self._shards.get(key)
        if key is not None and shard is not None and shard.partition is partition:
            self._remove(key)

    async def run(self) -> None:
        """Load the shards of current and future leaderships until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for key, shard in self._shards.items():
                self._start_load(key, shard)
            await self._is_stopped.wait()

    def tick(self) -> None:
        """Maintain the loaded shards if `tick_seconds` have passed since the last time."""
        now = self._clock.monotonic()
        if now - self._ticked_at >= self._tick_seconds and not self._is_stopped.is_set():
            self._ticked_at = now
            for shard in self:
                shard.tick()

    def stop(self) -> None:
        """Fail all waiting requests, because the broker is shutting down."""
        self._is_stopped.set()
        for key, shard in self._shards.items():
            self._cancel_load(key)
            shard.close(self.shutting_down("the broker is shutting down"))

    def _reload(self, shard: S, error: HeadraceError, pause_seconds: float) -> None:
        """Replace a shard whose state is ahead of its log because a write failed."""
        key = self._key_of(shard.partition)
        if key is not None and self._shards.get(key) is shard:
            self._remove(key, error)
            if shard.partition.is_leader:
                self._begin(key, shard.partition, pause_seconds)

    def _begin(self, key: K, partition: Partition, pause_seconds: float = 0.0) -> None:
        shard = None if self._is_stopped.is_set() else self._create_shard(partition)
        if shard is not None:
            self._shards[key] = shard
            self._start_load(key, shard, pause_seconds)

    def _remove(self, key: K, error: HeadraceError | None = None) -> None:
        shard = self._shards.pop(key, None)
        if shard is not None:
            self._cancel_load(key)
            name = f"{shard.partition.topic}-{shard.partition.index}"
            shard.close(error or self.not_leader(f"this broker no longer leads {name}"))

    # Loads

    async def _when_loaded(self, key: K) -> None:
        """Wait for a load in progress; raise `CoordinatorLoading` if it takes too long."""
        load = self._loads.get(key)
        if load is not None and not load.done():
            shard = self._shards[key]
            await switch_to_task()
            await asyncio.wait([load], timeout=_LOADING_SECONDS)
            if not load.done():
                name = f"{shard.partition.topic}-{shard.partition.index}"
                raise CoordinatorLoading(f"{name} is still being loaded; retry")

    def _start_load(self, key: K, shard: S, pause_seconds: float = 0.0) -> None:
        if not shard.is_loaded and self._tasks is not None:
            self._loads[key] = self._tasks.create_task(_load_shard(shard, pause_seconds))

    def _cancel_load(self, key: K) -> None:
        load = self._loads.pop(key, None)
        if load is not None:
            load.cancel()

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start another task of a shard. It is not cancelled together with the shard."""
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise self.shutting_down("the broker is shutting down")


async def _load_shard(shard: Shard, pause_seconds: float) -> None:
    if pause_seconds:
        await asyncio.sleep(pause_seconds)
    with suppress(NotLeader, NotCoordinator, UnknownTopicOrPartition):  # the new leader loads the partition
        await shard.load()


class OwnerCoordinator(ShardedCoordinator[int, S]):
    """The coordinator of the owners in a `StateLog`: of a group, or of a transactional id.

    - The leader of the partition to which an owner belongs is its coordinator.
    - Until a partition is loaded, requests for its owners fail with `CoordinatorLoading`. Requests for owners with
      damaged records fail permanently; other owners are not affected.
    - Requests for owners of partitions that this broker does not lead fail with `NotCoordinator`.
    - While the registry session of the broker has expired, all requests fail with `CoordinatorNotAvailable`, because
      another broker may be the coordinator.
    """

    not_leader = NotCoordinator
    shutting_down = CoordinatorNotAvailable

    def __init__(
        self,
        log: StateLog,
        clock: Clock,
        session_expired: Callable[[], bool],
        tick_seconds: float = 0.0,
    ) -> None:
        super().__init__(clock, tick_seconds)
        self._log = log
        self._session_expired = session_expired

    @abstractmethod
    def of(self, owner: str) -> S:
        """Return the shard of the owner's partition. Raise unless requests for this owner can be served now; call it
        again after every await."""

    async def ensure(self, owner: str) -> S:
        """Like `of`, but create the topic of the log if it does not exist yet."""
        self._ensure_running()
        await self._log.ensure()
        return self.of(owner)

    def ensure_loaded(self) -> None:
        self._ensure_running()
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still loading its state; retry")

    def _key_of(self, partition: Partition) -> int | None:
        return partition.index if partition.topic == self._log.topic else None

    def _ensure_running(self) -> None:
        super()._ensure_running()
        if self._session_expired():
            raise CoordinatorNotAvailable(
                "the registry session of this broker has expired, so another broker may be the coordinator; retry"
            )
