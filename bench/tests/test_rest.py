"""The peers with an HTTP API, and the figures of their load generator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench import load
from bench.figures import Sample
from bench.peers import known_peers
from bench.peers.echo import app
from bench.server import Server
from bench.targets import judge
from bench.tests.fakes import FakePeer
from bench.workloads import all_workloads
from bench.workloads.rest import RestPublish
from bench.workloads.workload import Trial

_SCRIPT = """#!/bin/sh
while read -r command; do
  echo "$command" >> {log}
  echo '{{"messages": 200, "wall_s": 0.5, "client_cpu_s": 0.25, "p50_us": 1000, "p99_us": 2000}}'
done
"""


def _command_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program, log = tmp_path / "restload", tmp_path / "commands"
    program.write_text(_SCRIPT.format(log=log))
    program.chmod(0o755)
    monkeypatch.setattr(load, "restload", lambda: program)
    return log


def test_a_request_counts_as_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _command_log(tmp_path, monkeypatch)
    server = Server(FakePeer("headrace-rest"), tmp_path)
    try:
        monkeypatch.setattr(server.process, "cpu_seconds", iter([1.0, 1.1]).__next__)
        workload = RestPublish(batch=10, connections=4, peers=["headrace-rest"])
        figures = workload.measure(Trial(server, 1.0))
    finally:
        monkeypatch.undo()
        server.close()
    assert log.read_text() == "publish 4 10 1000000000 2.0\n"
    assert figures["requests_per_s"] == 40
    assert figures["messages_per_s"] == 400
    assert figures["messages_per_cpu_s"] == pytest.approx(2000)
    assert figures["requests_per_cpu_s"] == pytest.approx(200)
    assert (figures["p50_ms"], figures["p99_ms"], figures["client_cores"]) == (1, 2, 0.5)


def test_every_peer_of_a_rest_workload_exists_and_speaks_http_or_its_native_protocol() -> None:
    peers = known_peers(None)
    workloads = [each for name, each in all_workloads().items() if name.startswith("rest-")]
    protocols = {peers[name].protocol for workload in workloads for name in workload.peers}
    assert protocols == {"rest", "echo", "amqp-http", "nats"}


def test_the_port_of_a_rest_peer_is_its_http_port(tmp_path: Path) -> None:
    peers = known_peers(None)
    assert _after("--http", peers["headrace-rest"].launch(tmp_path, 7777).command) == "127.0.0.1:7777"
    assert _after("--kafka", peers["headrace"].launch(tmp_path, 7777).command) == "127.0.0.1:7777"
    assert _after("--port", peers["uvicorn-echo"].launch(tmp_path, 7777).command) == "7777"
    rabbit = peers["rabbitmq-http"].launch(tmp_path, 7777).environment
    assert "management.tcp.port = 7777\n" in Path(rabbit["RABBITMQ_CONFIG_FILE"]).read_text()
    assert rabbit["RABBITMQ_NODE_PORT"] != "7777"


def test_the_echo_responds_when_the_body_is_complete() -> None:
    pieces: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b"},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert not sent
        return pieces.pop(0)

    async def send(message: dict[str, Any]) -> None:
        assert not pieces
        sent.append(message)

    asyncio.run(app({"type": "http"}, receive, send))
    start, body = sent
    assert start["status"] == 201
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
    assert "message_id" in json.loads(body["body"])


def test_a_single_publish_is_compared_with_the_echo_and_a_batch_with_a_fixed_target() -> None:
    single = [
        Sample(peer, 1, {"requests_per_cpu_s": rate}) for peer, rate in (("headrace-rest", 9.0), ("uvicorn-echo", 20.0))
    ]
    batches = [Sample("headrace-rest", 1, {"messages_per_cpu_s": 160_000.0})]
    verdicts = judge({"rest-publish": single, "rest-publish-100": batches})
    assert [(verdict.value, verdict.met) for verdict in verdicts] == [(0.45, False), (160_000, True)]


def _after(option: str, command: list[str]) -> str:
    return command[command.index(option) + 1]
