"""In a virtual machine the first touch of a page costs several times the next: whoever comes first pays.

So the run begins by touching as much page cache as it will use: a file is written and removed again.
"""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK = bytes(1 << 20)


def touch_pages(base: Path, size_bytes: int) -> None:
    path = base / "first-touch"
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(size_bytes // len(_CHUNK)):
                file.write(_CHUNK)
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
