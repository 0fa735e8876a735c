"""The commands and checks of `headrace pipeline cluster`; tests/spark runs it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.model.errors import InvalidConfig
from headrace.runtime.process_resources import lock_folder
from headrace.spark import standalone
from headrace.spark.standalone import StandaloneSettings, daemon_environment, daemons, run_standalone


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("spark")
    (home / "jars").mkdir()
    (home / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    monkeypatch.setattr(standalone, "environment", lambda: {"JAVA_HOME": "/java", "SPARK_HOME": str(home)})


@pytest.mark.usefixtures("environment")
def test_a_master_and_the_configured_number_of_workers_start(tmp_path: Path) -> None:
    settings = StandaloneSettings(str(tmp_path), ("127.0.0.1", 7077), workers=2, cores=3, memory="512m")
    master, *workers = daemons(settings, tmp_path, 4040)
    assert master.folder == tmp_path / "master"
    assert [worker.folder.name for worker in workers] == ["worker-1", "worker-2"]
    command = " ".join(master._command)
    assert command.startswith("/java/bin/java ")
    assert command.endswith("deploy.master.Master --host 127.0.0.1 --port 7077 --webui-port 4040")
    assert " ".join(workers[1]._command).endswith(
        "deploy.worker.Worker --host 127.0.0.1 --webui-port 0 --cores 3 --memory 512m "
        f"--work-dir {tmp_path / 'worker-2'} spark://127.0.0.1:7077"
    )


@pytest.mark.usefixtures("environment")
def test_the_cluster_cannot_be_reached_from_other_hosts() -> None:
    assert daemon_environment()["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert daemon_environment()["SPARK_SCALA_VERSION"] == "2.13"
    with pytest.raises(InvalidConfig, match="reachable from other hosts"):
        StandaloneSettings("d", ("10.0.0.1", 7077)).check()


def test_a_port_in_use_is_rejected_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = holder.getsockname()
        assert run_standalone(StandaloneSettings(str(tmp_path / "d"), address)) == 1
    assert f"cannot listen on 127.0.0.1:{address[1]}: Address already in use" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_folder_in_use_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = lock_folder(str(tmp_path), "a test")
    assert run_standalone(StandaloneSettings(str(tmp_path), ("127.0.0.1", standalone._free_port()))) == 1
    assert "is in use by another `headrace pipeline cluster`" in capsys.readouterr().err
    os.close(held)


@pytest.mark.usefixtures("environment")
def test_a_daemon_that_exits_ends_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def only_one(settings: StandaloneSettings, data: Path, ui_port: int) -> list[standalone.Daemon]:
        return [standalone.Daemon(data / "master", ["sh", "-c", "echo broken; exit 3"])]

    monkeypatch.setattr(standalone, "daemons", only_one)
    assert run_standalone(StandaloneSettings(str(tmp_path), ("127.0.0.1", standalone._free_port()))) == 1
    assert f"master ended with status 3; see {tmp_path / 'master' / 'log'}" in capsys.readouterr().err
    assert (tmp_path / "master" / "log").read_text() == "broken\n"
    assert not (tmp_path / "master" / "pid").exists()
