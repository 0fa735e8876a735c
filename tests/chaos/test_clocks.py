"""The wall clock of a process jumps; its monotonic clock and its waits do not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos import clocks
from tests.chaos.clocks import WrongClock, compile_library
from tests.chaos.namespaces import Host

HOUR = 3600.0
# Waits by a condition of the C library, until a moment of the wall clock that it computed itself.
CLOCKS = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
def wait(seconds):
    class Moment(ctypes.Structure):
        _fields_ = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]
    now = Moment()
    assert libc.clock_gettime(0, ctypes.byref(now)) == 0
    until = Moment(now.seconds + seconds, now.ns)
    mutex, condition = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    return libc.pthread_cond_timedwait(condition, mutex, ctypes.byref(until))
for line in sys.stdin:
    began = time.monotonic()
    wait(1)
    print(time.time(), libc.time(None), time.monotonic(), time.monotonic() - began, flush=True)
"""


@pytest.mark.parametrize("hours", [3.0, -3.0])
def test_only_the_wall_clock_is_wrong_and_only_for_as_long_as_it_is_set(tmp_path: Path, hours: float) -> None:
    if reason := clocks.unavailable_reason(tmp_path):
        pytest.skip(reason)
    clock = WrongClock(compile_library(tmp_path), tmp_path / "clock")
    command = [*clock.on(Host("a", "127.0.0.1")).prefix, sys.executable, "-c", CLOCKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for wrong in (0.0, hours * HOUR, 0.0):
            clock.set_wrong(wrong)
            before, before_monotonic = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            wall, whole_seconds, monotonic, waited = map(float, process.stdout.readline().split())
            assert before <= wall - wrong <= time.time()
            assert before - 1 <= whole_seconds - wrong <= time.time()
            assert before_monotonic <= monotonic <= time.monotonic()
            assert waited >= 0.9
            assert waited < HOUR
        process.stdin.close()
