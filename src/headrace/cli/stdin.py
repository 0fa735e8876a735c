"""Read lines of standard input without blocking the event loop, so that records are sent while typing continues."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

_READ_SIZE = 256 * 1024


async def read_lines(descriptor: int | None = None) -> AsyncIterator[bytes]:
    """Yield every line without its line break, which the last one may lack."""
    rest = b""
    async for piece in _pieces(sys.stdin.fileno() if descriptor is None else descriptor):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:
        # The event loop cannot poll regular files, but reading them never blocks for long.
        while piece := os.read(descriptor, _READ_SIZE):
            yield piece
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            if not (piece := os.read(descriptor, _READ_SIZE)):
                return
            yield piece
    finally:
        loop.remove_reader(descriptor)
