"""fdatasync by the kernel's own workers: no thread of ours waits for the disk, and none for the interpreter's lock.

Linux takes syncs through its asynchronous I/O (`io_submit`, since 4.18) and tells an eventfd, which the loop watches,
when they are over. A failed write-back is reported to the descriptor as by the call that blocks. Where the kernel or
the file system has no such thing, or enough is under way, `sync` returns None and the caller uses its threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from ctypes import PyDLL, addressof, c_char, c_int64, c_long, c_uint64, get_errno
from struct import Struct
from typing import Any, Final, NamedTuple

from headrace.runtime.file_pool import SystemFile

IN_FLIGHT_MAX: Final = 64

_FDSYNC: Final = 3
_TELL_EVENTFD: Final = 1
# struct iocb: data, key, flags, operation, priority, descriptor, buffer, bytes, offset, reserved, flags, eventfd.
_CONTROL_BLOCK: Final = Struct("<QIIHhIQQqQII")
_EVENT_WORDS: Final = 4  # of struct io_event: data, control block, result, and one more


class _Calls(NamedTuple):
    """The numbers of system calls for which the C library has no functions."""

    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS: Final = {"x86_64": _Calls(206, 207, 209, 208), "aarch64": _Calls(0, 1, 2, 4)}


class _Sync(NamedTuple):
    file: SystemFile
    writes: int
    future: asyncio.Future[None]


class KernelSyncs:
    """For one loop, on its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises `OSError` where the kernel has no asynchronous I/O, or has none left for us."""
        machine = os.uname().machine
        if machine not in _CALLS:
            raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known here")
        self.loop = loop
        self._calls = _CALLS[machine]
        self._in_flight: dict[int, _Sync] = {}
        self._next_number = 0
        self._block = (c_char * _CONTROL_BLOCK.size)()
        self._blocks = c_uint64(addressof(self._block))
        self._events = (c_int64 * (_EVENT_WORDS * IN_FLIGHT_MAX))()
        self._submit = _system_call(c_uint64, c_long, c_uint64)
        self._getevents = _system_call(c_uint64, c_long, c_long, c_uint64, c_uint64)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        context = c_uint64()
        if _system_call(c_long, c_uint64)(self._calls.setup, IN_FLIGHT_MAX, addressof(context)) < 0:
            os.close(self._eventfd)
            raise OSError(get_errno(), os.strerror(get_errno()))
        self._context = context.value
        loop.add_reader(self._eventfd, self._reap)

    def sync(self, file: SystemFile) -> asyncio.Future[None] | None:
        """Begin; None if that cannot be done here and now. The future raises `DiskFailed`."""
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        descriptor, writes = file.begin_sync()
        # The kernel copies the block before the call returns.
        _CONTROL_BLOCK.pack_into(
            self._block, 0, number, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _TELL_EVENTFD, self._eventfd
        )
        if self._submit(self._calls.submit, self._context, 1, addressof(self._blocks)) != 1:
            file.end_sync()
            return None
        sync = self._in_flight[number] = _Sync(file, writes, self.loop.create_future())
        return sync.future

    def close(self) -> None:
        """Wait for what is under way, whose futures will not be told."""
        _system_call(c_uint64)(self._calls.destroy, self._context)
        with suppress(RuntimeError):  # the loop may be closed
            self.loop.remove_reader(self._eventfd)
        os.close(self._eventfd)
        for sync in self._in_flight.values():
            sync.file.end_sync()
        self._in_flight.clear()

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        events = self._events
        count = self._getevents(self._calls.getevents, self._context, 0, IN_FLIGHT_MAX, addressof(events), 0)
        for at in range(0, count * _EVENT_WORDS, _EVENT_WORDS):
            sync, result = self._in_flight.pop(events[at]), events[at + 2]
            if result == 0:
                sync.file.end_sync(sync.writes)
            else:
                sync.file.end_sync()
            if sync.future.done():
                continue  # nobody waits any more
            if result == 0:
                sync.future.set_result(None)
            else:
                sync.future.set_exception(sync.file.sync_failure(OSError(-result, os.strerror(-result))))


def _system_call(*arguments: Any) -> Any:
    """None of ours waits, so the interpreter's lock is kept."""
    function = PyDLL(None, use_errno=True)["syscall"]
    function.restype, function.argtypes = c_long, (c_long, *arguments)
    return function
