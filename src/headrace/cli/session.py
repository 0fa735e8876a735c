"""Options that commands share, and running a coroutine with a connection to the cluster."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from headrace.cli.failure import failure_of_error
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.connections.address import parse_addresses
from headrace.model.errors import HeadraceError
from headrace.model.safe_text import escaped

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

SERVER_DEFAULT = "127.0.0.1:9092"


def server_option(command: Command) -> Command:
    return click.option(
        "--server",
        "--bootstrap-server",
        "server",
        envvar="HEADRACE_SERVER",
        default=SERVER_DEFAULT,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        callback=_check_server,
        help="Bootstrap brokers, separated by commas.",
    )(command)


def yes_option(command: Command) -> Command:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def dry_run_option(command: Command) -> Command:
    return click.option("--dry-run", is_flag=True, help="Show what would be done, but change nothing.")(command)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation of a destructive operation; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Use --yes to confirm without a terminal")
    click.confirm(escaped(question), abort=True, err=True)


def with_cluster(server: str, work: Callable[[Cluster], Awaitable[T]], *, deadline_seconds: float = 20.0) -> T:
    """Run `work` with a connection to the cluster; its errors become failures of the command."""

    async def main() -> T:
        async with connect(
            server, ClientSettings(client_id="headrace-cli", deadline_seconds=deadline_seconds)
        ) as cluster:
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
    except BrokenPipeError:
        raise  # not a failure: see `LazyGroup.invoke`
    except (HeadraceError, OSError) as error:
        raise failure_of_error(error) from error
    except asyncio.CancelledError:
        raise click.Abort from None


def _check_server(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    return value
