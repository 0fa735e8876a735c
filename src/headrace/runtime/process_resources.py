"""Resources that a process acquires from the operating system: file descriptors, a folder, an address.

- Connections and log files share the limit of open descriptors.
- The lock on a folder is an open file. Child processes that inherit the descriptor hold the lock too, and keep the
  folder locked if they outlive their parent.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket

from headrace.model.errors import InvalidConfig
from headrace.runtime.permissions import FILE_MODE, FOLDER_MODE

LOCK_NAME = ".lock"


def raise_open_files_limit() -> int:
    """Raise the soft limit of open descriptors to the hard limit. Returns the limit in effect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # a container may forbid it; the soft limit stays
    return soft


def lock_folder(folder: str, by_others: str) -> int:
    """Create and lock a folder. Returns the descriptor of the lock. `by_others` names other possible users."""
    os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    descriptor = try_lock(os.path.join(folder, LOCK_NAME))
    if descriptor is None:
        raise InvalidConfig(f"{folder} is in use by {by_others}")
    return descriptor


def try_lock(path: str) -> int | None:
    """Lock this file, and create it if it is missing. None if another process holds the lock."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def check_address_free(address: tuple[str, int]) -> None:
    """Raise InvalidConfig if no listener can be opened at this address."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidConfig(f"cannot listen on {address[0]}:{address[1]}: {reason}; choose another port") from None
