"""Permissions of files and folders: only the user that runs Headrace may access them.

- Folders are created with mode 0700 and files with 0600, whatever the umask: logs hold messages, and the registry holds
  the secrets of webhooks.
- The mode is passed to each call that creates a file. Changing the umask would also affect other files of a process
  that embeds a broker.
- Existing files keep their mode; `exposure_warning` says how to change it.
"""

from __future__ import annotations

import os
import stat

FILE_MODE = 0o600
FOLDER_MODE = 0o700

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_file(path: str) -> None:
    """Create an empty file if there is none."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def opener(path: str, flags: int) -> int:
    """The `opener` argument of the built-in `open`."""
    return os.open(path, flags, FILE_MODE)


def exposure_warning(path: str) -> str | None:
    """A warning if users other than the owner may access this file or folder; None if they may not."""
    mode = os.stat(path).st_mode
    if not mode & _OTHERS:
        return None
    is_folder = stat.S_ISDIR(mode)
    command = f"chmod {'-R ' if is_folder else ''}go= {path}"
    return f"other users may access this path, run `{command}` path={path} mode={stat.S_IMODE(mode):04o}"
