"""Waiting for what the cluster does by itself, with a bar on a terminal. Ctrl-C ends the wait, not the work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import click

from headrace.cli.output import chat

_POLL_SECONDS = 0.5


async def wait_until_none(left: Callable[[], Awaitable[int]], what: str) -> None:
    """Return when nothing of it is left."""
    rest = total = await left()
    try:
        with click.progressbar(length=total, label=what, file=sys.stderr) as bar:
            while rest:
                await asyncio.sleep(_POLL_SECONDS)
                rest = await left()
                bar.update(max(0, total - rest - bar.pos))  # more may come to it while we wait
    except asyncio.CancelledError:
        chat("the cluster goes on with it; `headrace cluster reassign status` shows how far it is")
        raise
