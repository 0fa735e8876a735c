"""What can go wrong with a disk, as types.

A full disk is a state that passes; everything else is a failure after which the file must not be trusted. A
missing file is neither: it stays Python's own `FileNotFoundError`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.model.errors import HeadraceError, StorageFailure

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskFull(StorageFailure):
    """There is no room left; nothing was written, and the same write may succeed later."""


class DiskFailed(StorageFailure):
    """The disk refused; what it holds of this file since the last good sync is unknown. Never retry."""


class DataFolderLocked(HeadraceError):
    """Another process uses this data folder."""


def typed_error(error: OSError, action: str, path: str) -> StorageFailure:
    """The typed form of what the kernel said."""
    kind = DiskFull if error.errno in FULL else DiskFailed
    return kind(f"{action} {path}: {error.strerror or error}")


@contextmanager
def typed_errors(action: str, path: str) -> Iterator[None]:
    """For the calls that are not on the hot path: raise their `OSError` typed."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise typed_error(error, action, path) from error
