"""`headrace worker`: run the handlers of an application in the foreground."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from headrace.cli.options import ParsedType, logging_options, server_option, usage_errors
from headrace.model.durations import parse_duration

if TYPE_CHECKING:
    from headrace.server.settings import LogFormat


@click.command()
@click.argument("application", metavar="MODULE:APP")
@server_option
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="Messages in work at a time, of each handler that does not set its own limit.",
)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Run this many worker processes."
)
@click.option("--reload", is_flag=True, help="Restart the processes when a Python file below the folder changes.")
@click.option("--child", is_flag=True, hidden=True, help="Stop when the parent process ends.")
@click.option(
    "--pool",
    type=click.IntRange(1, 256),
    help="Processes for handlers with process=True; default: the number of CPUs.",
)
@click.option(
    "--grace",
    type=ParsedType("duration", lambda text: parse_duration(text) / 1000),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long handlers in progress may run on after SIGTERM; then their messages are released.",
)
@click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics at this address.")
@click.option("--insecure", is_flag=True, help="Allow --health on other than loopback addresses.")
@logging_options
def worker(
    *,
    application: str,
    server: str,
    concurrency: int,
    processes: int,
    reload: bool,
    child: bool,
    pool: int | None,
    grace: float,
    health: str | None,
    insecure: bool,
    log_level: str,
    log_format: LogFormat,
) -> int:
    """Run the handlers of an application until SIGTERM or Ctrl-C.

    MODULE:APP names a headrace.worker.App, for example tasks:app for `app` in tasks.py. Prints one line that begins
    with `ready` when it begins to lease messages. The worker waits for brokers that are not reachable.

    \b
    headrace worker tasks:app --concurrency 32
    headrace worker tasks:app --processes 4
    headrace worker tasks:app --reload               while you develop
    """
    from headrace.server.settings import parse_address
    from headrace.server.worker import WorkerSettings, run_worker

    with usage_errors():
        settings = WorkerSettings(
            application=application,
            server=server,
            concurrency=concurrency,
            processes=pool or os.cpu_count() or 1,
            grace_seconds=grace,
            health=None if health is None else parse_address(health, "--health"),
            insecure=insecure,
            log_level=log_level,
            log_format=log_format,
            is_child=child,
        )
        settings.check()
    if processes == 1 and not reload:
        return run_worker(settings)
    from headrace.server.worker_processes import run_worker_processes

    return run_worker_processes(settings, processes, reload=reload)
