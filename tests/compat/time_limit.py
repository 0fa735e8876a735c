"""End the process when a call of a client library does not return in time.

- librdkafka 2.16 can wait forever for a coordinator that left the metadata and came back (its issues 5511 and 3740),
  whatever the cluster does. The call can be any one that waits: a poll, a commit, a transaction, a close.
- Python runs no signal handler while the main thread is inside the library, so a second thread ends the process.
- The exit code is `LIBRARY_HUNG`. The parent restarts such a process, and counts it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIBRARY_HUNG = 75
CALL_SECONDS = 45.0
"""The time limit of a single call."""


@contextmanager
def time_limit(seconds: float = CALL_SECONDS, on_expired: Callable[[], None] | None = None) -> Iterator[None]:
    """Limit the time of the calls in this block. `on_expired` is called before the process ends."""

    def end_process() -> None:
        try:
            if on_expired is not None:
                on_expired()
        finally:
            os._exit(LIBRARY_HUNG)

    timer = threading.Timer(seconds, end_process)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
