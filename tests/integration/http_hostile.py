"""Malicious HTTP clients: eleven kinds at once, without a token.

Manual run: `python -m tests.integration.http_hostile --seconds 60` starts a broker with --auth, floods it from
127.0.0.2, runs good clients with a token from 127.0.0.1 at the same time, and prints their results. It fails if a good
client saw an error or if the p99 of one kind of request is 1 s or more. The bad clients run in a separate process.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.integration.gateways import make_token
from tests.integration.hostile import allow_many_descriptors
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

BAD_HOST = "127.0.0.2"
P99_SECONDS_MAX = 1.0
BODY_BYTES = 16 << 20
HELD_MAX = 200  # connections that one kind of bad client keeps open; the silent ones keep more
SILENT_MAX = 3000
_PAUSE_SECONDS = 0.02
_HEAD = b"Host: localhost\r\n"
_POST = b"POST /topics/good/messages HTTP/1.1\r\n" + _HEAD
_SOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n"


class BadClients:
    """One thread for each kind of attack, which opens a connection, sends malicious input, and keeps or drops it."""

    def __init__(self, port: int, seed: int) -> None:
        self._address = ("127.0.0.1", port)
        self._chance = random.Random(seed)
        self.opened = dict.fromkeys(KINDS, 0)

    def run(self, stop: Any) -> None:
        allow_many_descriptors()
        threads = [threading.Thread(target=self._drive, args=(kind, stop), daemon=True) for kind in KINDS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, kind: str, stop: Any) -> None:
        held: list[socket.socket] = []
        held_max = SILENT_MAX if kind == "silent" else HELD_MAX
        for number in itertools.count():
            if stop.wait(0.001 if kind == "silent" and len(held) < held_max else _PAUSE_SECONDS):
                break
            if len(held) >= held_max:
                held.pop(0).close()
            with suppress(OSError):
                connection = socket.create_connection(self._address, 5, source_address=(BAD_HOST, 0))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                held.append(connection)
                self.opened[kind] += 1
                KINDS[kind](connection, self._chance, number)
        for connection in held:
            connection.close()


def connect_method(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.sendall(b"CONNECT http://x/ HTTP/1.1\r\nHost: x\r\n\r\n")


def all_but_one_byte(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.sendall(_POST + b"Content-Length: %d\r\n\r\n" % BODY_BYTES)
    connection.sendall(bytes(BODY_BYTES - 1))


def silent(_connection: socket.socket, _chance: random.Random, _number: int) -> None:
    """Connect without sending anything."""


def slow_head(connection: socket.socket, _chance: random.Random, number: int) -> None:
    head = b"GET /topics HTTP/1.1\r\n" + _HEAD
    connection.sendall(head[: 1 + number % len(head)])


def garbage(connection: socket.socket, chance: random.Random, _number: int) -> None:
    connection.sendall(chance.randbytes(chance.randint(1, 3000)))


def huge_head(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n" + _HEAD + b"X: " + b"x" * 40_000)


def never_reads(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall((b"GET /docs HTTP/1.1\r\n" + _HEAD + b"\r\n") * 50)


def opened_and_closed(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.close()


def made_up_token(connection: socket.socket, chance: random.Random, _number: int) -> None:
    token = f"hr_{chance.randbytes(6).hex()}_{chance.randbytes(32).hex()}"
    connection.sendall(_POST + f"Authorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}".encode())


def two_lengths(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.sendall(_POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2000)


def upgrades(connection: socket.socket, _chance: random.Random, _number: int) -> None:
    connection.sendall(b"GET /subscriptions/s/stream HTTP/1.1\r\n" + _HEAD + _SOCKET + b"\x01\x80\0\0\0\0" * 500)


KINDS: dict[str, Callable[[socket.socket, random.Random, int], None]] = {
    kind.__name__: kind
    for kind in (
        *(connect_method, all_but_one_byte, silent, slow_head, garbage, huge_head, never_reads, opened_and_closed),
        *(made_up_token, two_lengths, upgrades),
    )
}


def attack(port: int, stop: Any, report: Any) -> None:
    """The main function of the attackers' process."""
    clients = BadClients(port, seed=7)
    clients.run(stop)
    report.put(clients.opened)


class GoodClient:
    """Repeats one request in a thread, and records latencies and errors."""

    def __init__(self, name: str, port: int, token: str, act: Callable[[GoodClient], None]) -> None:
        self.name = name
        self.errors: list[str] = []
        self.seconds: list[float] = []
        self.port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._act = act
        self._connection = self.connect()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._connection.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.close()

    @property
    def p99_seconds(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    def call(self, method: str, path: str, body: Any = None, fresh: bool = False) -> Any:
        """Send one request and measure it; on a new connection if `fresh`."""
        connection = self.connect() if fresh else self._connection
        began = time.monotonic()
        connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        response = connection.getresponse()
        result = response.read()
        self.seconds.append(time.monotonic() - began)
        if response.status >= 300:
            self.errors.append(f"{method} {path}: {response.status} {result[:200]!r}")
        if fresh:
            connection.close()
        return json.loads(result) if response.status < 300 and result[:1] == b"{" else None

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            try:
                self._act(self)
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))
                return


def publish(client: GoodClient) -> None:
    client.call("POST", "/topics/good/messages", {"a": 1})


def pull_and_ack(client: GoodClient) -> None:
    pulled = client.call("GET", "/subscriptions/s/messages?max_messages=10")
    receipts = [message["receipt"] for message in pulled["messages"]] if pulled else []
    if receipts:
        client.call("POST", "/subscriptions/s/ack", {"receipts": receipts})


def probe_health(client: GoodClient) -> None:
    client.call("GET", "/livez", fresh=True)
    client.call("GET", "/readyz", fresh=True)


class Outcome:
    """The measurements of the good clients and of the broker."""

    def __init__(self, clients: Sequence[GoodClient], opened: dict[str, int], before: int, most: int) -> None:
        self.errors = [f"{client.name}: {error}" for client in clients for error in client.errors]
        self.clients = clients
        self.opened = opened
        self.grown_bytes = most - before
        self.most_bytes = most

    def __str__(self) -> str:
        good = "; ".join(
            f"{client.name} {len(client.seconds)} requests, p99 {client.p99_seconds * 1000:.0f} ms, "
            f"worst {max(client.seconds) * 1000:.0f} ms"
            for client in self.clients
        )
        return (
            f"{sum(self.opened.values())} bad connections of {len(self.opened)} kinds {self.opened}; {good}; "
            f"{len(self.errors)} errors; memory at most {self.most_bytes >> 20} MB, grown {self.grown_bytes >> 20} MB"
        )


def run(broker: BrokerProcess, seconds: float) -> Outcome:
    """Start a broker with `--auth`."""
    _, token = make_token(broker.address, "--scope", "manage:*")
    setup = GoodClient("setup", broker.http_port, token, publish)
    setup.call("POST", "/topics", {"name": "good", "partitions": 1})
    setup.call("POST", "/topics/good/subscriptions", {"name": "s", "start": "earliest"})
    publish(setup)
    setup.close()
    assert setup.errors == []
    acts = {"publish": publish, "pull/ack": pull_and_ack, "health": probe_health}
    clients = [GoodClient(name, broker.http_port, token, act) for name, act in acts.items()]
    for client in clients:
        client._act(client)  # what is loaded with the first request is not measured
        client.seconds.clear()
    before = most = broker.rss_bytes()
    context = multiprocessing.get_context("spawn")
    stop, report = context.Event(), context.Queue()
    attackers = context.Process(target=attack, args=(broker.http_port, stop, report), daemon=True)
    attackers.start()
    for client in clients:
        client.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        most = max(most, broker.rss_bytes())
    for client in clients:
        client.stop()
    stop.set()
    opened = report.get(timeout=PATIENCE_SECONDS)
    attackers.join(PATIENCE_SECONDS)
    return Outcome(clients, opened, before, most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder), options=["--auth"]).start()
        try:
            outcome = run(broker, options.seconds)
            failed = "Traceback" in broker.log_text()
        finally:
            broker.stop()
    sys.stdout.write(f"{outcome}\n")
    for error in outcome.errors[:5]:
        sys.stdout.write(f"{error}\n")
    is_slow = any(client.p99_seconds >= P99_SECONDS_MAX for client in outcome.clients)
    return 1 if outcome.errors or is_slow or failed else 0


if __name__ == "__main__":
    sys.exit(main())
