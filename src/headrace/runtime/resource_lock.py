"""What a command that starts other programs claims first: a folder that is its own, and an address that is free.

The lock on a folder is an open file: programs that are given the descriptor hold it, too, and keep the folder claimed
if they outlive whoever started them.
"""

from __future__ import annotations

import fcntl
import os
import socket

from headrace.model.errors import InvalidConfig
from headrace.runtime.permissions import FILE_MODE, FOLDER_MODE


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
