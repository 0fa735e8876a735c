"""What Headrace writes is for the user that it runs as alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.state import WorkFolder
from headrace.registry.sqlite import open_registry_file
from headrace.registry.sqlite_shared import SessionLockFile
from headrace.runtime.disk import SystemDisk
from headrace.runtime.permissions import exposure_warning
from headrace.runtime.process_resources import lock_folder


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Of everything in a folder and of the folder itself."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


async def test_folders_and_files_of_the_disk_are_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    disk = SystemDisk()
    disk.make_directory(str(data / "logs"))
    disk.make_directories(str(data / "logs"), ["a"])
    disk.lock(str(data))
    disk.write_atomically(str(data / "broker"), b"1")
    disk.open(str(data / "logs" / "a" / "0.log"), create=True).close()
    disk.close()
    assert modes(data) == {
        ".": "0o700",
        "logs": "0o700",
        "logs/a": "0o700",
        ".lock": "0o600",
        "broker": "0o600",
        "logs/a/0.log": "0o600",
    }


def test_all_files_of_the_registry_are_private(tmp_path: Path) -> None:
    connection = open_registry_file(str(tmp_path / "registry.db"))
    connection.execute("CREATE TABLE secrets (secret TEXT)")
    session = SessionLockFile(str(tmp_path / "registry.db-session-1"))
    found = modes(tmp_path)
    session.close()
    connection.close()
    assert "registry.db-wal" in found
    assert {mode for name, mode in found.items() if name != "."} == {"0o600"}


def test_folders_of_started_programs_and_of_pipelines_are_private(tmp_path: Path) -> None:
    os.close(lock_folder(str(tmp_path / "zookeeper"), "another"))
    work = WorkFolder(tmp_path / "pipelines" / "copy")
    descriptor = work.lock()
    assert descriptor is not None
    os.close(descriptor)
    assert modes(tmp_path / "zookeeper") == {".": "0o700", ".lock": "0o600"}
    assert modes(work.path) == {".": "0o700", "job": "0o700", "log": "0o600"}


def test_what_others_may_access_is_named_with_the_command_that_changes_it(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "registry.db"
    folder.mkdir(0o755)
    file.touch(0o640)
    assert exposure_warning(str(folder)) == (
        f"other users may access this path, run `chmod -R go= {folder}` path={folder} mode=0755"
    )
    assert exposure_warning(str(file)) == (
        f"other users may access this path, run `chmod go= {file}` path={file} mode=0640"
    )
    folder.chmod(0o700)
    file.chmod(0o600)
    assert exposure_warning(str(folder)) is None
    assert exposure_warning(str(file)) is None
