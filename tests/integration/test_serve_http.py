"""`headrace serve` with HTTP over TLS and with tokens."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from tests.integration.process import PATIENCE_SECONDS, wait_until

from headrace.server.brokers import command
from headrace.server.settings import ServeSettings

ANY_PORT = ("127.0.0.1", 0)


@contextmanager
def serving(settings: ServeSettings) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Yield the process and its `ready` line, and stop it cleanly."""
    process = subprocess.Popen(
        command(settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        name, *facts = process.stdout.readline().split() or ["nothing"]
        assert name == "ready", process.communicate(timeout=PATIENCE_SECONDS)
        yield process, dict(fact.split("=", 1) for fact in facts)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def ask(url: str, context: ssl.SSLContext, body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {} if body is None else {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> tuple[str, str]:
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


def test_https_requires_a_token_except_for_health(
    tmp_path: Path, files: tuple[str, str], trust: ssl.SSLContext
) -> None:
    settings = ServeSettings(data=str(tmp_path / "data"), kafka=ANY_PORT, http=ANY_PORT, http_tls=files, auth=True)
    with serving(settings) as (_, ready):
        url = f"https://{ready['http']}"
        assert ask(f"{url}/livez", trust) == (200, "ok\n")
        assert ask(f"{url}/readyz", trust)[0] == 200
        assert ask(f"{url}/metrics", trust)[0] == 401, "names of topics are in it; --open-metrics leaves it open"
        status, body = ask(f"{url}/topics/a/messages", trust, b"{}")
        assert status == 401
        assert json.loads(body)["code"]
        assert ask(f"{url}/topics", trust)[0] == 401


def test_without_authentication_every_local_client_may_publish(tmp_path: Path, trust: ssl.SSLContext) -> None:
    with serving(ServeSettings(data=str(tmp_path / "data"), kafka=ANY_PORT, http=ANY_PORT)) as (_, ready):
        assert ask(f"http://{ready['http']}/topics/a/messages", trust, b"{}")[0] == 201


def test_long_polls_get_a_response_when_the_broker_stops(tmp_path: Path, trust: ssl.SSLContext) -> None:
    settings = ServeSettings(data=str(tmp_path / "data"), kafka=ANY_PORT, http=ANY_PORT)
    with serving(settings) as (process, ready), ThreadPoolExecutor() as threads:
        url = f"http://{ready['http']}"
        assert ask(f"{url}/topics", trust, b'{"name": "a"}')[0] == 201
        assert ask(f"{url}/topics/a/subscriptions", trust, b'{"name": "s"}')[0] == 201
        waiting = threads.submit(ask, f"{url}/subscriptions/s/messages?wait=60s", trust)
        wait_until(lambda: "headrace_http_connections 2\n" in ask(f"{url}/metrics", trust)[1], "a long poll is waiting")
        process.send_signal(signal.SIGTERM)
        status, _ = waiting.result(PATIENCE_SECONDS / 2)
        assert status in (200, 503)
        process.wait(PATIENCE_SECONDS)


def test_an_invalid_certificate_is_reported_in_one_line(tmp_path: Path, files: tuple[str, str]) -> None:
    settings = ServeSettings(data=str(tmp_path / "data"), kafka=ANY_PORT, http=ANY_PORT, http_tls=(files[1], files[0]))
    process = subprocess.run(
        command(settings), stdin=subprocess.PIPE, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert process.returncode == 1
    assert "are not a PEM certificate and its key" in process.stderr.splitlines()[-1]


def test_the_log_can_be_json(tmp_path: Path) -> None:
    settings = ServeSettings(
        data=str(tmp_path / "data"), kafka=ANY_PORT, http=ANY_PORT, log_format="json", log_level="debug"
    )
    with serving(settings) as (process, ready):
        request = urllib.request.Request(f"http://{ready['http']}/livez?token=hush", headers={"X-Request-Id": "mine"})
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr if line.startswith("{")]
        process.wait(PATIENCE_SECONDS)
    (requested,) = [line for line in lines if line.get("request_id") == "mine"]
    assert requested["message"].startswith("request method=GET path=/livez status=200 ")
    assert "hush" not in str(lines)
