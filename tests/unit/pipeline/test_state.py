"""The status of a work folder is correct, also after the runner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.pipeline import state
from headrace.pipeline.job import JobProgress
from headrace.pipeline.state import Process, StateUnreadable, Status, WorkFolder


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    return WorkFolder(tmp_path)


def status_of(process: Process, state: state.State = "running") -> Status:
    return Status("orders", "archive", "once", state, process, 1, 2, progress=JobProgress(1, 4))


def test_a_pipeline_that_never_ran_has_no_status(folder: WorkFolder) -> None:
    assert folder.status() is None


def test_a_written_status_is_read_back(folder: WorkFolder) -> None:
    status = status_of(Process.own())
    folder.write_status(status)
    assert folder.status() == status
    assert [path.name for path in folder.path.iterdir()] == ["status.json"]


def test_a_run_whose_process_is_gone_has_died(folder: WorkFolder) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = msgspec.structs.replace(Process.own(), pid=child.pid, started=state._started(child.pid))
    folder.write_status(status_of(process))
    found = folder.status()
    assert found is not None
    assert found.state == "running"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has taken note of it
    found = folder.status()
    assert found is not None
    assert found.state == "died"
    child.communicate()
    assert not process.is_alive


@pytest.mark.parametrize("changes", [{"boot": "an earlier one"}, {"started": "17"}])
def test_a_reused_process_id_is_detected(folder: WorkFolder, changes: dict[str, str]) -> None:
    folder.write_status(status_of(msgspec.structs.replace(Process.own(), **changes)))
    found = folder.status()
    assert found is not None
    assert found.state == "died"


def test_a_run_on_another_host_is_assumed_to_be_alive(folder: WorkFolder) -> None:
    status = status_of(Process("elsewhere", "b", 1, "2"))
    folder.write_status(status)
    assert folder.status() == status


def test_a_run_that_has_ended_needs_no_process(folder: WorkFolder) -> None:
    status = status_of(Process("elsewhere", "b", 1, "2"), "done")
    folder.write_status(status)
    assert folder.status() == status


def test_a_stop_request_applies_to_one_run(folder: WorkFolder) -> None:
    process = Process.own()
    folder.write_status(status_of(process))
    assert not folder.is_stop_requested(process)
    folder.request_stop_of(process)
    assert folder.is_stop_requested(process)
    assert not folder.is_stop_requested(msgspec.structs.replace(process, started="other"))
    found = folder.status()
    assert found is not None
    assert found.state == "stopping"
    folder.clear_stop()
    assert not folder.is_stop_requested(process)


def test_an_unreadable_stop_request_is_ignored(folder: WorkFolder) -> None:
    (folder.path / "stop").write_text("now!")
    assert not folder.is_stop_requested(Process.own())


def test_an_unreadable_status_is_an_error(folder: WorkFolder) -> None:
    (folder.path / "status.json").write_text('{"name": 1}')
    with pytest.raises(StateUnreadable, match=r"status\.json cannot be read: .*; remove it"):
        folder.status()


def test_the_folder_is_locked_until_every_holder_of_its_log_has_closed_it(folder: WorkFolder) -> None:
    descriptor = folder.lock()
    assert descriptor is not None
    assert folder.lock() is None
    inherited = os.dup(descriptor)  # as Java does
    os.close(descriptor)
    assert folder.lock() is None
    os.close(inherited)
    again = folder.lock()
    assert again is not None
    os.close(again)


def test_a_large_log_is_rotated(folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LOG_BYTES_MAX", 3)
    folder.log.write_text("much")
    descriptor = folder.lock()
    assert descriptor is not None
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert folder.log.read_text() == "new"
    assert (folder.path / "log.old").read_text() == "much"
