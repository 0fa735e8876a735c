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


def raise_open_files_limit() -> int:
    """Lift the soft limit to the hard one; what is then allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # a container may forbid it: then the soft limit is what there is
    return soft


def lock_folder(folder: str, by_others: str) -> int:
    """Make the folder and take it for this process; the descriptor that holds it. `by_others`: who else may have it."""
    os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    descriptor = os.open(os.path.join(folder, ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InvalidConfig(f"{folder} is in use by {by_others}") from None
    return descriptor


def check_address_free(address: tuple[str, int]) -> None:
    """Raise if somebody listens there."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidConfig(f"cannot listen on {address[0]}:{address[1]}: {reason}; choose another port") from None
