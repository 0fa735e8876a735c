"""Who is alive among the processes on this host that share a registry: a small file for each session.

    registry.db-session-17    locked by the process that holds session 17; in it a number, its beat, which it raises

A process that ends, however that happens, loses its lock at once. One that is paused or wedged keeps it, but its beat
does not rise. The beat is raised in mapped memory, so that a disk that is busy does not make a process look dead.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from struct import Struct

from headrace.runtime.permissions import FILE_MODE

_BEAT = Struct("<Q")


class SessionLockFile:
    """Of a session that this process holds. Raises `OSError` if the file cannot be made."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written and not only made longer: a full disk is told here and not by a signal at the first beat.
            os.pwrite(self._descriptor, _BEAT.pack(0), 0)
            self._memory = mmap.mmap(self._descriptor, _BEAT.size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._beats = 0

    def beat(self) -> None:
        self._beats += 1
        _BEAT.pack_into(self._memory, 0, self._beats)

    def close(self) -> None:
        """Give up the lock: for the others the session is over."""
        self._memory.close()
        os.close(self._descriptor)


def read_beat(path: str) -> int | None:
    """The beat of a session; None when no process holds it any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared, so that those who look do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        beat: int
        (beat,) = _BEAT.unpack(os.pread(descriptor, _BEAT.size, 0))
        return beat
    finally:
        os.close(descriptor)
    return None


def session_path(registry: str, session: int) -> str:
    return f"{_prefix(registry)}{session}"


def remove_session_file(registry: str, session: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(session_path(registry, session))


def session_files(registry: str) -> set[int]:
    """The sessions of which there is a file."""
    folder, prefix = os.path.split(_prefix(registry))
    ends = (name.removeprefix(prefix) for name in os.listdir(folder or ".") if name.startswith(prefix))
    return {int(end) for end in ends if end.isdigit()}


def _prefix(registry: str) -> str:
    return f"{registry}-session-"
