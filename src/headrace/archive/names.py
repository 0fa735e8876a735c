"""File names in an archive. A name says what the file holds, and the same range always has the same name.

    <archive>/<topic>/p00000-00000000000000000000-00000000000000099999.parquet    partition 0, offsets 0 to 99999
    <archive>/<topic>/_headrace/00000000000000000007.json                         the eighth entry of the manifest
    <archive>/<topic>/_headrace/00000000000000000007.snapshot.json                all entries up to it, combined
    <archive>/<topic>/_headrace/tmp/p00000-...-....parquet.<token>                written, but not moved to its final
    name yet

Parquet readers skip names that begin with an underscore, so they see only the files with final names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MANIFEST_FOLDER = "_headrace"
STAGING_FOLDER = f"{MANIFEST_FOLDER}/tmp"

_FILE = re.compile(r"p([0-9]{5,10})-([0-9]{20})-([0-9]{20})\.parquet")
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot\.json")


class FileRange(NamedTuple):
    """The offsets that a file covers, both ends included. Offsets missing in the file are missing in the log."""

    partition: int
    first: int
    last: int


def file_name(partition: int, first: int, last: int) -> str:
    assert 0 <= first <= last, (first, last)
    return f"p{partition:05d}-{first:020d}-{last:020d}.parquet"


def parse_file_name(name: str) -> FileRange | None:
    """None unless `file_name` has created the name."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    found = FileRange(int(match[1]), int(match[2]), int(match[3]))
    return found if found.first <= found.last and file_name(*found) == name else None


def staged_name(name: str, token: str) -> str:
    """The name of a file until a manifest entry names it. Tokens are unique, so no writer overwrites another's file."""
    return f"{STAGING_FOLDER}/{name}.{token}"


def entry_name(sequence: int) -> str:
    return f"{MANIFEST_FOLDER}/{sequence:020d}.json"


def snapshot_name(sequence: int) -> str:
    return f"{MANIFEST_FOLDER}/{sequence:020d}.snapshot.json"


def parse_snapshot_name(name: str) -> int | None:
    """The sequence of a snapshot, by its name without folder."""
    match = _SNAPSHOT.fullmatch(name)
    return None if match is None else int(match[1])
