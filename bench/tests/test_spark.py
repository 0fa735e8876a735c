"""Spark as a load generator: its commands, its responses and its figures."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.failure import BenchFailure
from bench.figures import Sample
from bench.load.spark import run_spark_command
from bench.load.sparkload import SparkWork, response
from bench.peers import known_peers
from bench.peers.spark import Spark
from bench.server import Server
from bench.targets import judge
from bench.tests.fakes import FakePeer
from bench.workloads import all_workloads
from bench.workloads import spark as workloads
from bench.workloads.spark import MicroBatches, Scan
from bench.workloads.workload import Trial

_RECORDS, _SIZE = 1000, 100
_ALL_BYTES = _RECORDS * _SIZE + 4 * 100


class FakeServer:
    """A server without processes."""

    def __init__(self, peer: Spark, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self.process = SimpleNamespace(cpu_seconds=iter([1.0, 3.5]).__next__, check_alive=lambda: None)
        self.created: list[str] = []
        self.deleted: list[str] = []

    def create_topic(self, _partitions: int) -> str:
        self.created.append(f"bench-{len(self.created) + 1}")
        return self.created[-1]

    def delete_topic(self, name: str) -> None:
        self.deleted.append(name)


def _turn(name: str, folder: Path) -> tuple[Trial, FakeServer]:
    peer = known_peers(None)[name]
    assert isinstance(peer, Spark)
    server = FakeServer(peer, folder)
    return Trial(cast("Server", server), 1.0), server


def _recorded_commands(monkeypatch: pytest.MonkeyPatch, **responses: Any) -> list[dict[str, Any]]:
    """Record commands and respond to each with the prepared response of its name; produce no records."""
    commands: list[dict[str, Any]] = []

    def record(_server: Server, command: str, **settings: Any) -> dict[str, Any]:
        commands.append({"do": command, **settings})
        return cast("dict[str, Any]", responses[command])

    monkeypatch.setattr(workloads, "run_spark_command", record)
    monkeypatch.setattr(workloads, "_fill", lambda *_: None)
    return commands


def _scan() -> Scan:
    return Scan("spark-scan-100-lz4", records=_RECORDS, size=_SIZE, compression="lz4", peers=())


def test_a_scan_reports_rows_per_second_and_for_headrace_those_of_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = _recorded_commands(monkeypatch, scan={"wall_s": 0.5, "bytes": _ALL_BYTES})
    trial, _ = _turn("headrace-spark", tmp_path)
    scan = _scan()
    scan.prepare(trial)
    figures = scan.measure(trial)
    assert figures == {
        "all_rows_per_s": 2000,
        "all_cpu_s_per_m": pytest.approx(2500),
        "sum_rows_per_s": 2000,
        "value_rows_per_s": 2000,
    }
    assert [(each["query"], each.get("columns")) for each in commands] == [
        ("noop", None),
        ("sum", None),
        ("sum", "value"),
    ]


def test_spark_writes_parquet_once_and_its_topic_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _recorded_commands(monkeypatch, write_parquet={}, scan={"wall_s": 0.5, "bytes": _ALL_BYTES})
    trial, server = _turn("parquet-spark", tmp_path)
    scan = _scan()
    scan.prepare(trial)
    assert "value_rows_per_s" not in scan.measure(trial)
    assert commands[0] == {"do": "write_parquet", "topic": "bench-1", "compression": "lz4_raw"}
    assert [each["do"] for each in commands] == ["write_parquet", "scan", "scan"]
    assert server.deleted == ["bench-1"]


def test_a_scan_that_misses_a_row_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _recorded_commands(monkeypatch, scan={"wall_s": 0.5, "bytes": _ALL_BYTES - _SIZE})
    trial, _ = _turn("kafka-spark", tmp_path)
    scan = _scan()
    scan.prepare(trial)
    with pytest.raises(BenchFailure, match=r"100,300 bytes of values instead of 100,400"):
        scan.measure(trial)


def test_the_baseline_of_micro_batches_writes_to_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _recorded_commands(monkeypatch, batches={"trigger_ms": 120.0, "triggers": 25})
    batches = MicroBatches(peers=())
    for name in ("rate-spark", "headrace-spark"):
        trial, server = _turn(name, tmp_path)
        batches.prepare(trial)
        figures = batches.measure(trial)
        assert figures == {"noop_ms": 120.0} | ({} if name == "rate-spark" else {"topic_ms": 120.0})
    assert [each["target"] for each in commands] == [None, None, "bench-2"]
    assert server.deleted == ["bench-2"]


def test_spark_is_started_with_its_broker_and_its_address(tmp_path: Path) -> None:
    peer = Spark("headrace-spark", "headrace", FakePeer("headrace"))
    launch = peer.launch(tmp_path, 7777)
    assert launch.command[1:3] == ["-m", "http.server"]
    [spark] = launch.other_commands
    assert spark[1:] == ["-m", "bench.load.sparkload", str(tmp_path), "127.0.0.1:7777", "headrace", ""]
    assert launch.environment["PYTHONPATH"].endswith(str(Path(__file__).parents[2]))


def test_every_peer_of_a_spark_workload_exists_and_is_a_spark_peer() -> None:
    peers = known_peers(None)
    named = {name for each in all_workloads().values() if each.name.startswith("spark-") for name in each.peers}
    assert named == {name for name, peer in peers.items() if isinstance(peer, Spark)}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[FakeServer]:
    """A session that returns each command, fails at "fail", and closes the connection at "go"."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rw") as lines:
                command = json.loads(lines.readline())
                if command["do"] != "go":
                    lines.write(json.dumps({"failure": "no"} if command["do"] == "fail" else command) + "\n")

    thread = threading.Thread(target=serve)
    thread.start()
    (tmp_path / "spark.port").write_text(str(listener.getsockname()[1]))
    peer = known_peers(None)["headrace-spark"]
    assert isinstance(peer, Spark)
    yield FakeServer(peer, tmp_path)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_command_returns_its_figures_or_its_error(listening: FakeServer) -> None:
    server = cast("Server", listening)
    assert run_spark_command(server, "scan", topic="t") == {"do": "scan", "topic": "t"}
    with pytest.raises(BenchFailure, match="headrace-spark: fail: no"):
        run_spark_command(server, "fail")
    with pytest.raises(BenchFailure, match="closed the connection during go"):
        run_spark_command(server, "go")


def test_a_failed_command_does_not_end_the_session() -> None:
    class Failing:
        def scan(self, topic: str) -> dict[str, Any]:
            raise ValueError(f"there is no {topic}")

    assert response(cast("SparkWork", Failing()), {"do": "scan", "topic": "t"}) == {
        "failure": "ValueError: there is no t"
    }


def test_a_scan_is_compared_with_other_sources_and_a_micro_batch_with_a_fixed_target() -> None:
    rates = {"headrace-spark": 1.5e6, "kafka-spark": 0.6e6, "parquet-spark": 4e6}
    scans = [Sample(peer, 1, {"all_rows_per_s": rate}) for peer, rate in rates.items()]
    batches = [Sample("headrace-spark", 1, {"noop_ms": 200.0, "topic_ms": 350.0})]
    verdicts = judge({"spark-scan-100": scans, "spark-batches": batches})
    assert [(verdict.value, verdict.met) for verdict in verdicts] == [
        (2.5, True),
        (0.375, False),
        (200, True),
        (350, False),
    ]
