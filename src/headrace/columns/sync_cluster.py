"""A cluster client for synchronous code: one event loop thread per process and bootstrap list.

A forked child gets a new one: threads do not survive a fork, and the child must not use the parent's connections.
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
    """A cluster on its event loop thread; safe for concurrent use by many threads."""

    def __init__(self, bootstrap: str) -> None:
        self._cluster = connect(bootstrap)
        self._thread = LoopThread("headrace-link")
        self._loop = self._thread.run(asyncio.get_running_loop)
        self._free_connection_keys: list[int] = []
        self._connection_keys = 0
        self._connection_keys_lock = threading.Lock()

    def call(self, work: Work[T]) -> T:
        return self._thread.call(work(self._cluster))

    def start(self, work: Work[T]) -> Future[T]:
        """Start `work(cluster)` without waiting. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work(self._cluster), self._loop)

    @contextmanager
    def connection_key(self) -> Iterator[str]:
        """A key of connections for exclusive use inside the context. They stay open and are reused later."""
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
    """The cluster of this process for a bootstrap list ("host:port,host:port"); created by the first call."""
    key = (os.getpid(), bootstrap)
    with _clusters_lock:
        if key not in _clusters:
            _clusters[key] = SyncCluster(bootstrap)
        return _clusters[key]


def _after_fork() -> None:
    """Replace the lock in a forked child, because a thread that does not exist there may hold it.

    The parent's clusters stay referenced but unused: collecting them would close connections that the parent uses.
    """
    global _clusters_lock  # noqa: PLW0603
    _clusters_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
