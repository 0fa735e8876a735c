"""Spark as a load: what it is told and answers, and what is made of its figures."""

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
from bench.load.spark import tell_spark
from bench.load.sparkload import SparkWork, answer
from bench.peers import known_peers
from bench.peers.spark import Spark
from bench.server import Server
from bench.targets import judge
from bench.tests.fakes import FakePeer
from bench.workloads import all_workloads
from bench.workloads import spark as workloads
from bench.workloads.spark import MicroBatches, Scan
from bench.workloads.workload import Turn

_RECORDS, _SIZE = 1000, 100
_ALL_BYTES = _RECORDS * _SIZE + 4 * 100


class FakeServer:
    """A server that does not run; a Spark that answers what it is given."""

    def __init__(self, peer: Spark, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self.process = SimpleNamespace(cpu_seconds=iter([1.0, 3.5]).__next__, check_alive=lambda: None)
        self.made: list[str] = []
        self.deleted: list[str] = []

    def create_topic(self, _partitions: int) -> str:
        self.made.append(f"bench-{len(self.made) + 1}")
        return self.made[-1]

    def delete_topic(self, name: str) -> None:
        self.deleted.append(name)


def _turn(name: str, folder: Path) -> tuple[Turn, FakeServer]:
    peer = known_peers(None)[name]
    assert isinstance(peer, Spark)
    server = FakeServer(peer, folder)
    return Turn(cast("Server", server), 1.0), server


def _told(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> list[dict[str, Any]]:
    """Commands are kept, and answered by their name; nothing is produced."""
    told: list[dict[str, Any]] = []

    def tell(_server: Server, command: str, **settings: Any) -> dict[str, Any]:
        told.append({"do": command, **settings})
        return cast("dict[str, Any]", answers[command])

    monkeypatch.setattr(workloads, "tell_spark", tell)
    monkeypatch.setattr(workloads, "_fill", lambda *_: None)
    return told


def _scan() -> Scan:
    return Scan("spark-scan-100-lz4", records=_RECORDS, size=_SIZE, compression="lz4", peers=())


def test_a_scan_gives_rows_per_second_and_ours_also_those_of_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _told(monkeypatch, scan={"wall_s": 0.5, "bytes": _ALL_BYTES})
    turn, _ = _turn("headrace-spark", tmp_path)
    scan = _scan()
    scan.prepare(turn)
    figures = scan.measure(turn)
    assert figures == {
        "all_rows_per_s": 2000,
        "all_cpu_s_per_m": pytest.approx(2500),
        "sum_rows_per_s": 2000,
        "value_rows_per_s": 2000,
    }
    assert [(each["query"], each.get("columns")) for each in told] == [("noop", None), ("sum", None), ("sum", "value")]


def test_spark_writes_parquet_once_and_its_topic_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _told(monkeypatch, write_parquet={}, scan={"wall_s": 0.5, "bytes": _ALL_BYTES})
    turn, server = _turn("parquet-spark", tmp_path)
    scan = _scan()
    scan.prepare(turn)
    assert "value_rows_per_s" not in scan.measure(turn)
    assert told[0] == {"do": "write_parquet", "topic": "bench-1", "compression": "lz4_raw"}
    assert [each["do"] for each in told] == ["write_parquet", "scan", "scan"]
    assert server.deleted == ["bench-1"]


def test_a_scan_that_misses_a_row_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _told(monkeypatch, scan={"wall_s": 0.5, "bytes": _ALL_BYTES - _SIZE})
    turn, _ = _turn("kafka-spark", tmp_path)
    scan = _scan()
    scan.prepare(turn)
    with pytest.raises(BenchFailure, match=r"100,300 bytes of values instead of 100,400"):
        scan.measure(turn)


def test_the_baseline_of_micro_batches_has_no_topic_to_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _told(monkeypatch, batches={"trigger_ms": 120.0, "triggers": 25})
    batches = MicroBatches(peers=())
    for name in ("rate-spark", "headrace-spark"):
        turn, server = _turn(name, tmp_path)
        batches.prepare(turn)
        figures = batches.measure(turn)
        assert figures == {"noop_ms": 120.0} | ({} if name == "rate-spark" else {"topic_ms": 120.0})
    assert [each["target"] for each in told] == [None, None, "bench-2"]
    assert server.deleted == ["bench-2"]


def test_spark_is_started_beside_its_broker_and_told_where_that_is(tmp_path: Path) -> None:
    peer = Spark("headrace-spark", "headrace", FakePeer("headrace"))
    launch = peer.launch(tmp_path, 7777)
    assert launch.command[1:3] == ["-m", "http.server"]
    [spark] = launch.beside
    assert spark[1:] == ["-m", "bench.load.sparkload", str(tmp_path), "127.0.0.1:7777", "headrace", ""]
    assert launch.environment["PYTHONPATH"].endswith(str(Path(__file__).parents[2]))


def test_every_peer_of_a_spark_workload_is_known_and_a_spark() -> None:
    peers = known_peers(None)
    named = {name for each in all_workloads().values() if each.name.startswith("spark-") for name in each.peers}
    assert named == {name for name, peer in peers.items() if isinstance(peer, Spark)}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[FakeServer]:
    """A Spark that answers with what it was told, fails at "fail", and hangs up at "go"."""
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


def test_a_command_is_answered_by_its_figures_or_by_what_went_wrong(listening: FakeServer) -> None:
    server = cast("Server", listening)
    assert tell_spark(server, "scan", topic="t") == {"do": "scan", "topic": "t"}
    with pytest.raises(BenchFailure, match="headrace-spark: fail: no"):
        tell_spark(server, "fail")
    with pytest.raises(BenchFailure, match="hung up at go"):
        tell_spark(server, "go")


def test_a_failed_command_does_not_end_the_session() -> None:
    class Failing:
        def scan(self, topic: str) -> dict[str, Any]:
            raise ValueError(f"there is no {topic}")

    assert answer(cast("SparkWork", Failing()), {"do": "scan", "topic": "t"}) == {
        "failure": "ValueError: there is no t"
    }


def test_a_scan_is_judged_by_sparks_own_sources_and_a_micro_batch_by_its_time() -> None:
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
