"""Finds and loads the compiled library of this folder's C files.

Where it was not built, or HEADRACE_PURE=1 is set, there is none, and Python does the same. One that was built from
another version of the C files is never called. To import ctypes takes 3 ms, so this module is imported by whoever first
has something to do for the library, not at the start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from ctypes import CDLL, PyDLL, c_int
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

VERSION: Final = 4  # as in library.h


class Library:
    """The loaded file. Its functions let other threads run while they work, or keep the interpreter's lock, which is
    cheaper for what takes microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._releasing, self._keeping = CDLL(str(path)), PyDLL(str(path))

    def is_of(self, version: int) -> bool:
        return bool(self.function("headrace_version", c_int)() == version)

    @property
    def has_crc32c(self) -> bool:
        """Whether this processor has the instruction; without it nothing that sums may be called."""
        return bool(self.function("headrace_has_crc32c", c_int)())

    def function(
        self, name: str, result: type[Any] | None, *arguments: Any, keeps_lock: bool = False
    ) -> Callable[..., Any]:
        found = getattr(self._keeping if keeps_lock else self._releasing, name)
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def warn_of_its_age(self) -> None:
        log.warning(
            "%s was built from another version of its source and is not used; install headrace again", self._path
        )


@cache
def library() -> Library | None:
    """The library; None when it was not built, or is not wanted."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return None
    for path in sorted(Path(__file__).parent.glob(f"_library*{EXTENSION_SUFFIXES[-1]}")):
        found = Library(path)
        if found.is_of(VERSION):
            return found
        found.warn_of_its_age()
    return None
