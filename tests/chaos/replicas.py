"""Compare the replicas of stopped brokers byte by byte, and verify the files of each.

Segments may be rolled at different offsets, so logs are compared, not files. Each broker compacts its own logs: the
caller names the logs that must be equal.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

CHUNK_BYTES = 2**20


def compare(equal: Mapping[str, Sequence[Path]], growing: Mapping[str, Sequence[Path]]) -> tuple[int, int, list[str]]:
    """Return the number of logs and bytes compared, and the differences. Each log is given by the folders of its
    replicas.

    A log in `growing` may be longer on a broker that stopped later, because its leader writes when its leadership
    begins. The shorter replica must still be a prefix of the longer one.
    """
    found: list[str] = []
    logs = size = 0
    for name, copies in (*equal.items(), *growing.items()):
        if missing := [str(copy) for copy in copies if not copy.is_dir()]:
            found.append(f"replica missing: {', '.join(missing)}")
            continue
        sizes = {str(copy): sum(path.stat().st_size for path in _segments(copy)) for copy in copies}
        if name not in growing and len(set(sizes.values())) > 1:
            found.append(f"replicas of {name} differ in length: {sizes}")
        logs += 1
        shortest = min(sizes.values())
        size += shortest
        for copy in copies[1:]:
            at = _first_difference(copies[0], copy)
            if at is not None and at < shortest:
                found.append(f"replicas diverged: {copies[0]} and {copy} differ at byte {at}")
    return logs, size, found


def verify(folder: Path) -> list[str]:
    """Run `headrace log verify` on a data folder; return what it reports."""
    command = [str(Path(sys.executable).with_name("headrace")), "log", "verify", "--data", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return [] if done.returncode == 0 else [f"headrace log verify {folder}: {done.stdout}{done.stderr}"]


def _first_difference(one: Path, other: Path) -> int | None:
    """Return the position of the first difference, or None if one log is a prefix of the other."""
    position = 0
    for left, right in zip(_chunks(_segments(one)), _chunks(_segments(other)), strict=False):
        length = min(len(left), len(right))
        if left[:length] != right[:length]:
            return position + next(at for at in range(length) if left[at] != right[at])
        position += length
    return None


def _chunks(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the concatenated content of the files in chunks of equal size, except the last."""
    held = b""
    for path in paths:
        with path.open("rb") as file:
            while more := file.read(CHUNK_BYTES - len(held)):
                held += more
                if len(held) == CHUNK_BYTES:
                    yield held
                    held = b""
    if held:
        yield held


def _segments(log: Path) -> list[Path]:
    return sorted(log.glob("*.log"))
