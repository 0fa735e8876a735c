"""Typed errors of the disk.

- A full disk is temporary. After any other failure the file must not be trusted.
- A missing file is reported as Python's own `FileNotFoundError`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.model.errors import HeadraceError, StorageFailure

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskFull(StorageFailure):
    """The disk is full. Nothing was written, and the same write may succeed later."""


class DiskFailed(StorageFailure):
    """A read, write or sync failed. The content of the file since its last successful sync is unknown. Never retry."""


class DataFolderLocked(HeadraceError):
    """Another process uses this data folder."""


def typed_error(error: OSError, action: str, path: str) -> StorageFailure:
    """Convert an error of the kernel to a typed error."""
    kind = DiskFull if error.errno in FULL else DiskFailed
    return kind(f"{action} {path}: {error.strerror or error}")


@contextmanager
def typed_errors(action: str, path: str) -> Iterator[None]:
    """Convert `OSError` to typed errors, for calls that are not on the hot path."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise typed_error(error, action, path) from error
