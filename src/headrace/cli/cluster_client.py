"""Run a coroutine with a client of the cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from headrace.client.cluster import ClientSettings, Cluster, connect

T = TypeVar("T")


_REQUEST_SECONDS = 30.0
_DEADLINE_SECONDS = 20.0


def with_cluster(server: str, work: Callable[[Cluster], Awaitable[T]], timeout_seconds: float = _REQUEST_SECONDS) -> T:
    """Run `work` with a connection to the cluster. No request, and no call including its retries, takes longer than
    `timeout_seconds`."""
    settings = ClientSettings(
        client_id="headrace-cli",
        request_timeout_seconds=min(_REQUEST_SECONDS, timeout_seconds),
        deadline_seconds=min(_DEADLINE_SECONDS, timeout_seconds),
    )

    async def main() -> T:
        async with connect(server, settings) as cluster:
            # Connect once without retries, so that an unreachable broker is reported immediately.
            await cluster.refresh([])
            return await work(cluster)

    return run(main())


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. SIGINT and SIGTERM cancel it, so that it closes its resources."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        raise click.Abort from None
