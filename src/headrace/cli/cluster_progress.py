"""Wait for an operation of the cluster, with a progress bar on a terminal. Ctrl-C ends the wait, not the operation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import click

from headrace.cli.output import chat

_POLL_SECONDS = 0.5


async def wait_until_none(left: Callable[[], Awaitable[int]], what: str) -> None:
    """Wait until `left` returns 0."""
    rest = total = await left()
    try:
        with click.progressbar(length=total, label=what, file=sys.stderr) as bar:
            while rest:
                await asyncio.sleep(_POLL_SECONDS)
                rest = await left()
                bar.update(max(0, total - rest - bar.pos))  # the total may grow while we wait
    except asyncio.CancelledError:
        chat("the operation continues; `headrace cluster reassign status` shows its progress")
        raise
