"""`headrace serve --brokers N`: settings of each broker, data folders, supervision."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from headrace.cli.servers.serve import serve
from headrace.model.errors import InvalidConfig
from headrace.server import broker_processes as brokers
from headrace.server import serve as main
from headrace.server.broker_processes import BrokersSettings, command
from headrace.server.data_layout import reject_multi_broker_folder, reject_single_broker_folder
from headrace.server.settings import ServeSettings

FULL = ServeSettings(
    data="d",
    kafka=("::1", 9092),
    http=("127.0.0.1", 8080),
    node_id=11,
    rack="a",
    session_timeout_seconds=2.5,
    advertised=("example.org", 19092),
    broker={"num.partitions": "4", "client.quota.callback.class": "a=b"},
    http_tls=(__file__, __file__),
    auth=True,
    push_private=True,
    insecure=True,
    log_level="debug",
    log_format="json",
)


def test_each_broker_has_the_next_id_and_ports_its_own_folder_and_the_shared_registry() -> None:
    first, second = BrokersSettings(2, FULL).each()
    assert (first.node_id, first.data, first.kafka, first.http) == (11, "d/broker-11", ("::1", 9092), FULL.http)
    assert (second.node_id, second.data, second.kafka) == (12, "d/broker-12", ("::1", 9093))
    assert (second.http, second.advertised) == (("127.0.0.1", 8081), ("example.org", 19093))
    assert first.registry == second.registry == "sqlite:d/registry.db"
    assert first.is_child
    assert second.is_child
    assert second.broker == FULL.broker


def test_port_0_stays_0_for_each_broker(tmp_path: Path) -> None:
    settings = ServeSettings(data=str(tmp_path), kafka=("127.0.0.1", 0), http=("127.0.0.1", 0))
    assert {one.kafka for one in BrokersSettings(3, settings).each()} == {("127.0.0.1", 0)}
    BrokersSettings(3, settings).check()


@pytest.mark.parametrize("settings", BrokersSettings(3, FULL).each() + BrokersSettings(1, ServeSettings()).each())
def test_the_command_line_of_a_broker_restores_its_settings(
    settings: ServeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ServeSettings] = []
    monkeypatch.setattr(main, "serve", read.append)
    words = command(settings)
    serve.main(words[words.index("serve") + 1 :], standalone_mode=False)
    assert read == [settings]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (ServeSettings(kafka=("0.0.0.0", 9092)), "reachable from other hosts"),
        (ServeSettings(kafka=("127.0.0.1", 65534)), "--kafka requires 3 consecutive ports"),
        (ServeSettings(http=("127.0.0.1", 65534)), "--http requires 3 consecutive ports"),
        (ServeSettings(advertised=("example.org", 65534)), "--advertised requires 3 consecutive ports"),
        (ServeSettings(kafka=("127.0.0.1", 8082)), "must be at least 3 apart"),
        (ServeSettings(kafka=("127.0.0.1", 8078)), "must be at least 3 apart"),
    ],
)
def test_invalid_settings_are_rejected(settings: ServeSettings, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        BrokersSettings(3, settings).check()


def test_ports_may_be_adjacent(tmp_path: Path) -> None:
    data = str(tmp_path)
    BrokersSettings(3, ServeSettings(data=data, kafka=("127.0.0.1", 65533), http=("127.0.0.1", 65530))).check()
    BrokersSettings(3, ServeSettings(data=data, kafka=("127.0.0.1", 8080), http=("127.0.0.2", 8080))).check()


def test_registry_and_brokers_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "run_brokers", lambda _: pytest.fail("it was started"))
    with pytest.raises(click.UsageError, match="--registry exclude each other"):
        serve.main(["--brokers", "3", "--registry", "zookeeper://localhost/a"], standalone_mode=False)


def test_one_broker_rejects_the_folder_of_several_and_says_how_to_start_them(tmp_path: Path) -> None:
    reject_multi_broker_folder(str(tmp_path / "missing"))
    reject_multi_broker_folder(str(tmp_path))
    for number in (1, 2, 3):
        (tmp_path / f"broker-{number}").mkdir()
    (tmp_path / "broker-x").mkdir()
    with pytest.raises(InvalidConfig, match=r"of 3 brokers; start them with --brokers 3, or"):
        reject_multi_broker_folder(str(tmp_path))
    (tmp_path / "broker-1").rmdir()
    with pytest.raises(InvalidConfig, match=r"--brokers 2 --node-id 2, or"):
        reject_multi_broker_folder(str(tmp_path))


def test_several_brokers_reject_the_folder_of_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(InvalidConfig, match="omit --brokers"):
        BrokersSettings(3, ServeSettings(data=str(tmp_path))).check()


def test_every_broker_with_data_must_be_started_and_more_may_be_added(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"broker-{number}").mkdir()
    reject_single_broker_folder(str(tmp_path), [1, 2, 3])
    reject_single_broker_folder(str(tmp_path), [1, 2, 3, 4])
    with pytest.raises(InvalidConfig, match=r"broker-3 belongs to a broker that would not be started.*drain 3 --wait"):
        reject_single_broker_folder(str(tmp_path), [1, 2])


def test_an_error_is_one_line_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ServeSettings(data=str(tmp_path / "d"), kafka=("0.0.0.0", 9092))
    assert brokers.run_brokers(BrokersSettings(2, settings)) == 1
    assert capsys.readouterr().err.startswith("error: --kafka 0.0.0.0 is reachable")
    assert not (tmp_path / "d").exists()
    (tmp_path / "d").touch()
    assert brokers.run_brokers(BrokersSettings(2, msgspec.structs.replace(settings, insecure=True))) == 1
    assert capsys.readouterr().err.startswith("error: [Errno")
