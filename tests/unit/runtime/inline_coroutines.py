"""Work for a process of its own: it is found there by its name, so it lies in a module."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from headrace.runtime.disk import Disk, DiskFull, IoPace


def double(pace: IoPace, number: int) -> int:
    sys.stdout.write("this is not the answer")
    pace(1)
    return 2 * number


def look_around(pace: IoPace) -> tuple[int, int]:
    """Its process id and priority."""
    return os.getpid(), os.nice(0)


def refuse(pace: IoPace) -> NoReturn:
    raise DiskFull("no room")


def die(pace: IoPace) -> NoReturn:
    os._exit(3)


class Unreadable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def raise_unreadable(pace: IoPace) -> NoReturn:
    raise Unreadable("one", "two")


def hang(pace: IoPace, pipe: str) -> NoReturn:
    """Open the pipe and hold it for as long as this process lives."""
    with open(pipe, "w"):
        threading.Event().wait()
    raise AssertionError


def write_and_read(disk: Disk, pace: IoPace, path: str, data: bytes) -> bytes:
    pace(len(data))
    file = disk.open(path, create=True)
    file.append([data])
    file.sync()
    return file.pread(100, 0)
