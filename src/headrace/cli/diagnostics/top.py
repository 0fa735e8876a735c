"""`headrace top`: watch a cluster live. It only reads: it joins no group, leases no message and commits no offset."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.diagnostics.top_view import (
    ENTER,
    LEAVE,
    SORTS,
    ClusterSample,
    Sort,
    Summary,
    Table,
    frame,
    headline,
    sample_cluster,
    summarize,
    table_lines,
    tables,
)
from headrace.cli.options import server_option
from headrace.cli.output import echo, output_option, print_json, wants_json
from headrace.client.cluster import Cluster
from headrace.model.errors import HeadraceError

ShowSample = Callable[[ClusterSample, Summary, Sequence[Table], Sort], None]

_QUIT, _SORT = "q", "s"
_SHOWN = 20


@click.command()
@click.option(
    "--http",
    multiple=True,
    metavar="HOST:PORT",
    help="A broker's HTTP address, to show its metrics as well: bytes, CPU, memory, fsync; repeatable.",
)
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--sort", type=click.Choice(SORTS), default="lag", show_default=True, help="The sort order.")
@click.option(
    "-n",
    "--top",
    "count",
    type=click.IntRange(0),
    default=_SHOWN,
    show_default=True,
    help="The maximum number of topics, subscriptions and groups; 0 for all.",
)
@click.option("--once", is_flag=True, help="Take one sample over the interval and exit.")
@server_option
@output_option
def top(
    *, http: Sequence[str], interval: float, sort: Sort, count: int, once: bool, server: str, output: str | None
) -> None:
    """Watch brokers, topics, subscriptions and groups: rates, lag and backlog.

    On a terminal the table is refreshed until q or Ctrl-C is pressed. In a pipe each sample is printed as one JSON
    object per row.
    """
    has_screen = not wants_json(output) and not once and sys.stdout.isatty()
    show = show_json if wants_json(output) else _draw_screen if has_screen else _show_tables

    async def work(cluster: Cluster) -> None:
        view = TopMonitor(cluster, http, sort, count or None)
        with suppress(asyncio.CancelledError), _screen(view) if has_screen else nullcontext():
            await view.run(show, interval, once=once)

    with_cluster(server, work)


class TopMonitor:
    """Samples the cluster periodically and shows the changes between two samples."""

    def __init__(self, cluster: Cluster, http: Sequence[str], sort: Sort, count_max: int | None) -> None:
        self.sort = sort
        self._cluster = cluster
        self._http = http
        self._count_max = count_max
        self._pressed = asyncio.Event()
        self._is_over = False

    async def run(self, show: ShowSample, interval: float, *, once: bool) -> None:
        """Run until the user quits. The first sample has no rates, so `once` shows the second."""
        sample, previous = await sample_cluster(self._cluster, self._http), None
        while True:
            if previous is not None or not once:
                self._show(show, sample, previous)
            if once and previous is not None:
                return
            while await self._wait_for_key(interval):
                if self._is_over:
                    return
                self._show(show, sample, previous)
            try:
                sample, previous = await sample_cluster(self._cluster, self._http), sample
            except HeadraceError as error:
                if once:
                    raise
                sample.troubles = [f"{error.message}; the data shown is stale"]

    def on_key(self, key: str) -> None:
        if key == _QUIT:
            self._is_over = True
        elif key == _SORT:
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self._pressed.set()

    async def _wait_for_key(self, seconds: float) -> bool:
        self._pressed.clear()
        try:
            async with asyncio.timeout(seconds):
                return await self._pressed.wait()
        except TimeoutError:
            return False

    def _show(self, show: ShowSample, sample: ClusterSample, previous: ClusterSample | None) -> None:
        show(sample, summarize(sample), tables(sample, previous, self.sort, self._count_max), self.sort)


def show_json(sample: ClusterSample, summary: Summary, tables: Sequence[Table], _sort: Sort) -> None:
    at = {"at_ms": sample.now_ms}
    print_json([{"kind": "cluster", **at, **summary._asdict()}])
    for table in tables:
        print_json({"kind": table.kind, **at, **row} for row in table.rows)


def _show_tables(_sample: ClusterSample, summary: Summary, tables: Sequence[Table], _sort: Sort) -> None:
    echo(headline(summary))
    for trouble in summary.troubles:
        echo(f"warning: {trouble}", err=True)
    for table in tables:
        if table.rows:
            echo()
            echo(*table_lines(table))


def _draw_screen(_sample: ClusterSample, summary: Summary, tables: Sequence[Table], sort: Sort) -> None:
    size = shutil.get_terminal_size()
    sys.stdout.write(frame(summary, tables, sort, size.columns, size.lines))
    sys.stdout.flush()


@contextmanager
def _screen(view: TopMonitor) -> Iterator[None]:
    sys.stdout.write(ENTER)
    try:
        with _keys(view):
            yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


@contextmanager
def _keys(view: TopMonitor) -> Iterator[None]:
    """Read keys as they are pressed, without Enter."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    previous: list[Any] = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: view.on_key(os.read(descriptor, 1).decode(errors="replace")))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, previous)
