"""One way to the brokers per process and bootstrap list, for code that is not async: a loop in a thread of its own.

A forked child has its own: threads do not survive a fork, and the parent's connections are not the child's to use.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.client.cluster import Cluster, connect
from headrace.sdk.loop_thread import LoopThread

T = TypeVar("T")
Work = Callable[[Cluster], Coroutine[Any, Any, T]]


class SyncCluster:
    """A cluster on its loop; safe to be used by many threads at once."""

    def __init__(self, bootstrap: str) -> None:
        self._cluster = connect(bootstrap)
        self._thread = LoopThread("headrace-link")
        self._loop = self._thread.run(asyncio.get_running_loop)
        self._free_connection_keys: list[int] = []
        self._connection_keys = 0
        self._connection_keys_lock = threading.Lock()

    def call(self, work: Work[T]) -> T:
        """What `work(cluster)` returns or raises."""
        return self._thread.call(work(self._cluster))

    def start(self, work: Work[T]) -> Future[T]:
        """The same without waiting for it; a cancelled future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work(self._cluster), self._loop)

    @contextmanager
    def connection_key(self) -> Iterator[str]:
        """Connections that nobody else uses meanwhile; they are kept for the next who asks."""
        with self._connection_keys_lock:
            if not self._free_connection_keys:
                self._free_connection_keys.append(self._connection_keys)
                self._connection_keys += 1
            number = self._free_connection_keys.pop()
        try:
            yield f"link-{number}"
        finally:
            with self._connection_keys_lock:
                self._free_connection_keys.append(number)


_clusters: dict[tuple[int, str], SyncCluster] = {}
_clusters_lock = threading.Lock()


def sync_cluster(bootstrap: str) -> SyncCluster:
    """The link of this process to these brokers ("host:port,host:port"); made at the first call, and kept."""
    key = (os.getpid(), bootstrap)
    with _clusters_lock:
        if key not in _clusters:
            _clusters[key] = SyncCluster(bootstrap)
        return _clusters[key]


def _after_fork() -> None:
    """A thread that is not in the child may have held the lock. The parent's links are kept, unused: to collect them
    would close what the parent still uses."""
    global _clusters_lock  # noqa: PLW0603
    _clusters_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
