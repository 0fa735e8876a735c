"""Work that a cancelled caller must not leave half done.

The disk threads go on when their caller is cancelled. Whoever came next would work on the same files beside
them, and nobody would hear of a failure. So the caller waits for the end first, and is cancelled then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end, even if the caller is cancelled meanwhile."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
