"""Files that tell who is alive: held, given up, missing, and looked at by several at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headrace.registry.sqlite_shared import (
    SessionLockFile,
    read_beat,
    remove_session_file,
    session_files,
    session_path,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry.db-session-1")


def test_a_beat_is_seen_by_others_while_the_file_is_held(path: str) -> None:
    held = SessionLockFile(path)
    assert read_beat(path) == 0
    held.beat()
    held.beat()
    assert read_beat(path) == 2
    held.close()
    assert read_beat(path) is None


def test_a_file_that_is_missing_is_held_by_nobody(path: str) -> None:
    assert read_beat(path) is None


def test_a_file_is_held_by_one_only_and_may_be_taken_over_from_a_dead_one(path: str) -> None:
    first = SessionLockFile(path)
    first.beat()
    with pytest.raises(BlockingIOError):
        SessionLockFile(path)
    assert read_beat(path) == 1
    first.close()
    second = SessionLockFile(path)
    assert read_beat(path) == 0
    second.close()


def test_one_who_looks_is_not_taken_for_the_holder_by_another(path: str) -> None:
    SessionLockFile(path).close()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert read_beat(path) is None
    os.close(looking)


def test_the_files_of_a_registry_are_found_and_removed_by_their_number(tmp_path: Path) -> None:
    registry = str(tmp_path / "registry.db")
    for name in ("registry.db-session-7", "registry.db-session-12", "registry.db-session-x", "registry.db-wal"):
        (tmp_path / name).touch()
    assert session_files(registry) == {7, 12}
    assert session_path(registry, 7) == str(tmp_path / "registry.db-session-7")
    remove_session_file(registry, 7)
    remove_session_file(registry, 7)
    assert session_files(registry) == {12}
