"""The HTTP listener over real sockets, on both event loops, with and without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from tests.unit.http.http_harness import HOST, RESERVED, ScriptedApplication, parse, settled

from headrace.http.limits import HttpLimits
from headrace.http.listener import HttpListener, TlsFiles
from headrace.model.errors import InvalidConfig
from headrace.runtime.clock import SystemClock
from headrace.testkit.entropy import SeededEntropy

PATIENCE_SECONDS = 20
GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def listening(
    script: ScriptedApplication, tls: TlsFiles | None = None, **limits: Any
) -> AsyncIterator[tuple[HttpListener, int]]:
    listener = HttpListener(script, HttpLimits(sweep_seconds=0.02, **limits), SystemClock(), SeededEntropy(1), RESERVED)
    _, port = await listener.listen(HOST, 0, tls)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield listener, port
    finally:
        listener.stop_listening()
        await listener.drain(0)
        await settled()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(story)

    return run


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_requests_are_served_over_a_socket(run: Run) -> None:
    async def story() -> None:
        script = ScriptedApplication()
        async with listening(script) as (listener, port):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET % b"a" + GET % b"large" + GET % b"b")
            writer.write_eof()
            answers = parse(await reader.read())
            assert [len(response.body) for response in answers] == [22, 100_000, 22]
            writer.close()
            assert script.requests[0].peer == HOST
            assert listener.accepted == 1

    run(story())


def test_a_client_rejected_while_sending_receives_the_error(run: Run) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication()) as (_, port):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
            assert parse(await reader.read())[0].status == 413
            writer.close()

    run(story())


def test_a_client_that_does_not_read_is_disconnected_without_affecting_others(run: Run) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication(), unread_seconds=0.1) as (listener, port):
            greedy = socket.create_connection((HOST, port))
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.sendall(GET % b"large" * 500)
            reader, writer = await asyncio.open_connection(HOST, port)
            for _ in range(20):
                writer.write(GET % b"a")
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            writer.close()
            while len(listener.connections) > 0:
                await asyncio.sleep(0.01)
            assert listener.bytes_out < 40_000_000
            greedy.close()

    run(story())


def test_a_long_poll_of_a_closed_client_is_cancelled(run: Run) -> None:
    """A closed client looks half-closed until data are sent to it."""

    async def story() -> None:
        script = ScriptedApplication()
        async with listening(script) as (listener, port):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET % b"wait/a")
            while not script.started:
                await asyncio.sleep(0.01)
            writer.close()
            while not script.cancelled:
                await asyncio.sleep(0.01)
            assert not listener.connections

    run(story())


def test_a_half_closed_client_gets_its_response_after_the_probes(run: Run) -> None:
    async def story() -> None:
        script = ScriptedApplication()
        async with listening(script) as (_, port):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET % b"wait/a")
            writer.write_eof()
            received = await reader.readuntil(b"\r\n\r\n")
            script.open("a")
            received += await reader.read()
            assert [response.status for response in parse(received)][-1] == 200
            assert {response.status for response in parse(received)} == {100, 200}
            writer.close()

    run(story())


def test_a_reset_connection_does_not_affect_others(run: Run) -> None:
    async def story() -> None:
        script = ScriptedApplication()
        async with listening(script) as (listener, port):
            client = socket.create_connection((HOST, port))
            client.sendall(GET % b"wait/a")
            while not script.started:
                await asyncio.sleep(0.01)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            while not script.cancelled:
                await asyncio.sleep(0.01)
            assert not listener.connections

    run(story())


def test_draining_closes_the_listener_and_its_connections(run: Run) -> None:
    async def story() -> None:
        script = ScriptedApplication()
        async with listening(script) as (listener, port):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET % b"wait/a")
            while not script.started:
                await asyncio.sleep(0.01)
            listener.stop_listening()
            asyncio.get_running_loop().call_later(0.05, script.open, "a")
            await listener.drain(PATIENCE_SECONDS)
            assert parse(await reader.read())[0].headers["connection"] == "close"
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection(HOST, port)
            writer.close()

    run(story())


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def files_of(authority: trustme.CA, folder: Path) -> TlsFiles:
    issued = authority.issue_cert(HOST)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return TlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"))


def test_requests_are_served_over_tls(run: Run, authority: trustme.CA, tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication(), files_of(authority, tmp_path)) as (_, port):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            writer.write(GET % b"a" + GET % b"large" + b"garbage\r\n\r\n")
            assert [response.status for response in parse(await reader.read())] == [200, 200, 400]
            writer.close()

    run(story())


def test_a_plain_text_client_gets_no_response_from_a_tls_listener(
    run: Run, authority: trustme.CA, tmp_path: Path
) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication(), files_of(authority, tmp_path)) as (listener, port):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GET % b"a")
            assert b"HTTP" not in await reader.read()
            writer.close()
            await until(lambda: not listener.connections)
            assert listener.requests == [0] * 6

    run(story())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_a_tls_handshake_counts_against_the_host_limit(run: Run, authority: trustme.CA, tmp_path: Path) -> None:
    async def story() -> None:
        limits = {"connections_max": 3, "connections_per_host_max": 2, "connections_reserved": 2}
        async with listening(ScriptedApplication(), files_of(authority, tmp_path), **limits) as (listener, port):
            silent = [socket.create_connection((HOST, port)) for _ in range(2)]
            await until(lambda: len(listener.connections) == 2)
            reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting(authority))
            writer.write(GET % b"a")
            (response,) = parse(await reader.read())
            assert (response.status, response.code) == (503, "too_many_connections")
            writer.close()
            for client in silent:
                client.close()
            await until(lambda: not listener.connections)
            reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting(authority))
            writer.write(GET % b"a")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            writer.close()

    run(story())


def test_health_is_served_over_tls_while_handshakes_use_all_connections(
    run: Run, authority: trustme.CA, tmp_path: Path
) -> None:
    async def story() -> None:
        limits = {"connections_max": 2, "connections_per_host_max": 2, "connections_reserved": 2}
        async with listening(ScriptedApplication(), files_of(authority, tmp_path), **limits) as (listener, port):
            silent = [socket.create_connection((HOST, port)) for _ in range(6)]
            await until(lambda: listener.accepted == 6)
            await until(lambda: len(listener.connections) == 4)
            reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting(authority))
            writer.write(GET % b"healthy")
            (response,) = parse(await reader.read())
            assert response.status == 200
            writer.close()
            for client in silent:
                client.close()

    run(story())


def test_a_slow_tls_handshake_ends_at_the_head_timeout(run: Run, authority: trustme.CA, tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication(), files_of(authority, tmp_path), head_seconds=0.2) as (
            listener,
            port,
        ):
            reader, writer = await asyncio.open_connection(HOST, port)
            await until(lambda: len(listener.connections) == 1)
            for byte in b"\x16\x03\x01\x40\x00" + b"\x01" * 1_000_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
                if reader.at_eof() or not listener.connections:
                    break
            assert not listener.connections
            writer.close()

    run(story())


def test_a_request_received_with_the_end_of_the_tls_handshake_is_served(
    run: Run, authority: trustme.CA, tmp_path: Path
) -> None:
    """The last bytes of the handshake and the request arrive together."""

    def converse(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname=HOST)
        with socket.create_connection((HOST, port)) as client:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.sendall(outgoing.read())
                    incoming.write(client.recv(65536))
            tls.write(GET % b"a" + b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            client.sendall(outgoing.read())
            received = b""
            while True:
                try:
                    while data := tls.read():
                        received += data
                    return received
                except ssl.SSLWantReadError:
                    if not (data := client.recv(65536)):
                        return received
                    incoming.write(data)
                except ssl.SSLEOFError:
                    return received

    async def story() -> None:
        async with listening(ScriptedApplication(), files_of(authority, tmp_path)) as (listener, port):
            answers = parse(await asyncio.to_thread(converse, port))
            assert [response.path for response in answers] == ["/a", "/b"]
            await until(lambda: not listener.connections)

    run(story())


def test_draining_ends_tls_handshakes(run: Run, authority: trustme.CA, tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(ScriptedApplication(), files_of(authority, tmp_path)) as (listener, port):
            client = socket.create_connection((HOST, port))
            await until(lambda: len(listener.connections) == 1)
            listener.stop_listening()
            await listener.drain(PATIENCE_SECONDS)
            assert not listener.connections
            client.close()

    run(story())


async def test_an_invalid_certificate_or_key_file_is_named_in_the_error(authority: trustme.CA, tmp_path: Path) -> None:
    files = files_of(authority, tmp_path)
    script = ScriptedApplication()
    with pytest.raises(InvalidConfig, match=r"key.pem and .*cert.pem are not a PEM certificate and its key"):
        async with listening(script, TlsFiles(files.key, files.certificate)):
            pass
    with pytest.raises(InvalidConfig, match=r"cannot read .*missing.pem or .*: No such file"):
        async with listening(script, TlsFiles(str(tmp_path / "missing.pem"), files.key)):
            pass
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidConfig, match=r"KEY_VALUES_MISMATCH|mismatch"):
        async with listening(script, TlsFiles(files.certificate, files_of(authority, other).key)):
            pass


async def test_connection_modules_are_imported_with_the_first_connection() -> None:
    import subprocess
    import sys

    script = (
        "import sys, headrace.http.listener; print([m for m in sys.modules if 'httptools' in m or 'exchange' in m])"
    )
    received = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert received.stdout == "[]\n"
