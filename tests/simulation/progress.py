"""End a seed that makes no progress: code that loops without waiting would hang the test process.

The limit is on processor time, so a busy machine does not matter; a seed needs a second or two.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SEED_SECONDS = 120.0
REPEAT_SECONDS = 1.0


class NoProgress(AssertionError):
    """A seed needs far more processor time than any other."""


class _Alarm(KeyboardInterrupt):
    """asyncio propagates a KeyboardInterrupt out of the loop; any other exception would end in a task."""


@contextmanager
def limited_time(seconds: float = SEED_SECONDS) -> Iterator[None]:
    """Raise `NoProgress` when the block uses more processor time. Call it in the main thread."""

    def wake_up(_signal: int, frame: FrameType | None) -> None:
        raise _Alarm("" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}")

    before = signal.signal(signal.SIGVTALRM, wake_up)
    # Repeat: the cleanup may run into the same loop.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, REPEAT_SECONDS)
    try:
        yield
    except _Alarm as alarm:
        raise NoProgress(f"no end after {seconds:g} s of processor time, at {alarm}") from alarm
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
