"""Metrics of the process: memory, file descriptors, CPU time and event loop lag, under the standard names."""

from __future__ import annotations

import os
import resource
import sys

from headrace import __version__
from headrace.runtime.clock import Clock
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.loop_lag import LoopLag

_STATM = "/proc/self/statm"
_DESCRIPTORS = "/proc/self/fd"


def add_process(out: Exposition, clock: Clock, started: float, loop_lag: LoopLag) -> None:
    """`started` is a time of the monotonic clock."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    uptime = clock.monotonic() - started
    python = ".".join(map(str, sys.version_info[:3]))
    out.add("headrace_build_info", 1, format_labels(version=__version__, python=python))
    out.add("headrace_uptime_seconds", round(uptime, 3))
    out.add("process_start_time_seconds", round(clock.now_ms() / 1000 - uptime, 3))
    out.add("process_cpu_seconds_total", round(usage.ru_utime + usage.ru_stime, 6))
    out.add("process_max_resident_memory_bytes", usage.ru_maxrss * 1024)
    out.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    out.add_histogram("headrace_loop_lag_seconds", loop_lag.seconds)
    if os.path.exists(_STATM):  # Linux only
        _add_memory(out)
        out.add("process_open_fds", _descriptor_count())


def _add_memory(out: Exposition) -> None:
    with open(_STATM, encoding="ascii") as file:
        pages, resident_pages, *_ = map(int, file.read().split())
    page_bytes = resource.getpagesize()
    out.add("process_virtual_memory_bytes", pages * page_bytes)
    out.add("process_resident_memory_bytes", resident_pages * page_bytes)


def _descriptor_count() -> int:
    """Count open descriptors. Since Linux 6.2 the count is the size of the folder; listing thousands of entries would
    block the event loop."""
    return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))
