"""Find and load the compiled library of this folder's C files.

- If it was not built, or HEADRACE_PURE=1 is set, the Python implementations are used.
- A library that was built from another version of the C files is never called.
- Importing ctypes takes 3 ms, so this module is imported at first use, not at the start of a broker.
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
    """The loaded library. Its functions release the interpreter lock, or keep it, which is cheaper for calls that take
    microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._releasing, self._keeping = CDLL(str(path)), PyDLL(str(path))

    @property
    def has_crc32c(self) -> bool:
        """Whether the processor has the CRC-32C instruction; without it no function that checks CRCs may be called."""
        return bool(self.function("headrace_has_crc32c", c_int)())

    def function(
        self, name: str, result: type[Any] | None, *arguments: Any, keeps_lock: bool = False
    ) -> Callable[..., Any]:
        found = getattr(self._keeping if keeps_lock else self._releasing, name)
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def warn_of_version(self) -> None:
        log.warning(
            "library not used, it was built from another version of its source; install headrace again path=%s",
            self._path,
        )


@cache
def library() -> Library | None:
    """The library; None if it was not built or is disabled."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return None
    for path in sorted(Path(__file__).parent.glob(f"_library*{EXTENSION_SUFFIXES[-1]}")):
        found = Library(path)
        if found.function("headrace_version", c_int)() == VERSION:
            return found
        found.warn_of_version()
    return None
