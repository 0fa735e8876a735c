"""Malicious HTTP clients get an error, use bounded memory, and do not affect others."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration import http_hostile
from tests.integration.conftest import Figures
from tests.integration.hostile import allow_many_descriptors
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until

SECONDS = float(os.environ.get("HEADRACE_HOSTILE_SECONDS", "5"))
MEMORY_GROWTH_MAX = 150 * 2**20
POST = b"POST /topics/target/messages HTTP/1.1\r\nHost: localhost\r\n"


class GoodClient:
    """Publishes messages in sequence on one connection, and records errors and latencies."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.errors: list[str] = []
        self.seconds: list[float] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=PATIENCE_SECONDS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GoodClient:
        self.publish()  # what is loaded with the first request is loaded before anything is measured
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def publish(self) -> None:
        began = time.monotonic()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/topics/good/messages", b'{"a": 1}', headers)
        answer = self._connection.getresponse()
        response = answer.read()
        if answer.status != 201:
            self.errors.append(f"{answer.status} {response!r}")
        self.seconds.append(time.monotonic() - began)

    def _run(self) -> None:
        while not self._stopped.wait(0.005):
            try:
                self.publish()
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))
                return


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.http_port), timeout=PATIENCE_SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """Read up to the end or a reset of the connection."""
    response = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            response += piece
    return response


def response_to(broker: BrokerProcess, request: bytes) -> tuple[int, str]:
    """Return status and code of the only response, after which the connection must be closed."""
    with connect(broker) as connection:
        connection.sendall(request)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head, head
    problem = json.loads(body)
    assert problem["message"]
    assert problem["next"]
    return int(head.split(b" ")[1]), problem["code"]


def attacks(chance: random.Random) -> Iterator[tuple[bytes, float]]:
    """Return an endless mix of inputs, each with the time to stay connected."""
    whole = POST + b"Content-Length: 20\r\n\r\n" + b"x" * 20
    kinds: Sequence[Callable[[], tuple[bytes, float]]] = [
        lambda: (chance.randbytes(chance.randint(1, 3000)), 0.05),
        lambda: (whole[: chance.randint(1, len(whole) - 1)], 3.0),
        lambda: (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000, 0.05),
        lambda: (POST + b"Content-Length: 900000\r\n\r\n", 3.0),
        lambda: (POST + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 10_000, 0.05),
        lambda: (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0.05),
        lambda: (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 2000, 1.0),
        lambda: (b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50, 1.0),  # and never reads
        lambda: (
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\xff\xff",
            0.05,
        ),
        lambda: (b"", 0.0),
    ]
    for kind in itertools.cycle(kinds):
        yield kind()


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_a_well_behaved_client_sees_no_error_in_a_flood_of_bad_requests(
    broker: BrokerProcess, figures: Figures
) -> None:
    allow_many_descriptors()
    staying: list[tuple[float, socket.socket]] = []
    sent = 0
    with GoodClient(broker) as client:
        before = most = broker.rss_bytes()
        until = time.monotonic() + SECONDS
        for payload, stay in attacks(random.Random(7)):
            now = time.monotonic()
            if now > until:
                break
            connection = connect(broker)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT left
            with suppress(ConnectionError):  # it may be refused while it is sending
                connection.sendall(payload)
            sent += 1
            staying.append((now + stay, connection))
            if sent % 50 == 0:
                most = max(most, broker.rss_bytes())
                for _, over in [one for one in staying if one[0] <= now]:
                    over.close()
                staying = [one for one in staying if one[0] > now]
    for _, connection in staying:
        connection.close()
    worst = max(client.seconds[1:])
    figures.add(
        f"{sent} bad requests in {SECONDS:.0f} s; {len(client.seconds)} good ones, worst {worst * 1000:.0f} ms; "
        f"memory {before >> 20} MB, at most {most >> 20} MB"
    )
    assert client.errors == []
    assert most - before < MEMORY_GROWTH_MAX
    assert "Traceback" not in broker.log_text()
    wait_until(lambda: connections_of(broker) <= 1, "all of them are gone")


@pytest.mark.timeout(180 + 2 * SECONDS)
def test_good_clients_see_no_error_next_to_eleven_kinds_of_attackers(tmp_path: Path, figures: Figures) -> None:
    """`python -m tests.integration.http_hostile --seconds 60` is the long form, which checks latencies as well."""
    broker = BrokerProcess(tmp_path, options=["--auth"]).start()
    try:
        outcome = http_hostile.run(broker, SECONDS)
        figures.add(str(outcome))
        assert outcome.errors == []
        assert all(outcome.opened.values())
        assert outcome.grown_bytes < MEMORY_GROWTH_MAX
        assert "Traceback" not in broker.log_text()
    finally:
        broker.stop()


def connections_of(broker: BrokerProcess) -> int:
    lines = broker.http_get("/metrics").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("headrace_http_connections "))


def test_a_thousand_slow_clients_do_not_block_others_and_get_an_error(broker: BrokerProcess) -> None:
    allow_many_descriptors()
    with GoodClient(broker) as client:
        before = broker.rss_bytes()
        connections = [connect(broker) for _ in range(1000)]
        head = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n"
        for number, connection in enumerate(connections):
            connection.sendall(head[: 1 + number % len(head)])
        published = len(client.seconds)
        wait_until(lambda: len(client.seconds) > published + 50, "the good client goes on")
        assert broker.rss_bytes() - before < 50 * 2**20
        answers = [read_all(connection) for connection in connections]
    assert client.errors == []
    assert all(response.startswith(b"HTTP/1.1 408 ") for response in answers)
    for connection in connections:
        connection.close()


def test_announced_but_unsent_bodies_use_no_memory(broker: BrokerProcess) -> None:
    with GoodClient(broker) as client:
        before = broker.rss_bytes()
        connections = [connect(broker) for _ in range(200)]
        for connection in connections:
            connection.sendall(POST + b"Content-Length: 900000\r\n\r\n" + b"x" * 100)
        published = len(client.seconds)
        wait_until(lambda: len(client.seconds) > published + 50, "the good client goes on")
        assert broker.rss_bytes() - before < 50 * 2**20
    assert client.errors == []
    for connection in connections:
        connection.close()


def test_clients_that_never_read_do_not_block_others(broker: BrokerProcess) -> None:
    with GoodClient(broker) as client:
        broker.http_get("/openapi.json")
        before = broker.rss_bytes()
        connections = []
        for _ in range(50):
            connection = connect(broker)
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connections.append(connection)
        for connection in connections * 10:
            with suppress(BlockingIOError):  # the peer does not read any more, as intended
                connection.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        published = len(client.seconds)
        wait_until(lambda: len(client.seconds) > published + 50, "the good client goes on")
        assert broker.rss_bytes() - before < MEMORY_GROWTH_MAX
    assert client.errors == []
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("request_bytes", "response"),
    [
        (b"\x16\x03\x01\x02\0\x01", (400, "malformed_request")),
        (b"GET / HTTP/1.1\r\n\r\n", (400, "malformed_request")),
        (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", (400, "malformed_request")),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (400, "malformed_request")),
        (POST + b"Content-Length: 999999999\r\n\r\n" + b"x" * 2_000_000, (413, "body_too_large")),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", (414, "url_too_long")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", (431, "too_many_headers")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000, (431, "headers_too_large")),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", (501, "unknown_coding")),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", (505, "unknown_version")),
    ],
)
def test_a_rejected_body_gets_its_error_while_it_is_being_sent(
    broker_of_module: BrokerProcess, request_bytes: bytes, response: tuple[int, str]
) -> None:
    assert response_to(broker_of_module, request_bytes) == response
    assert broker_of_module.http_get("/livez") == "ok\n"


def test_a_half_closed_client_gets_its_response(broker_of_module: BrokerProcess) -> None:
    with connect(broker_of_module) as connection:
        connection.sendall(POST + b"Content-Length: 3\r\nContent-Type: application/json\r\n\r\n123")
        connection.shutdown(socket.SHUT_WR)
        assert b"201 Created" in read_all(connection)


def test_an_incomplete_request_publishes_nothing(broker_of_module: BrokerProcess) -> None:
    with connect(broker_of_module) as connection:
        connection.sendall(b"POST /topics/cut/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345")
        connection.shutdown(socket.SHUT_WR)
        assert b'"incomplete_request"' in read_all(connection)
    with pytest.raises(OSError, match="404"):
        broker_of_module.http_get("/topics/cut")


@pytest.fixture(scope="module")
def broker_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("hostile")).start()
    yield broker
    broker.stop()
