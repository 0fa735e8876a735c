"""Malicious Kafka clients: a flood of inputs that a broker must survive.

Manual run: `python -m tests.integration.hostile 127.0.0.1:9092 --seconds 60 --rate 1000` floods a broker and
runs a well-behaved client at the same time, and prints the results of that client. Bad inputs come from one thread;
each opens a connection, sends malformed data and checks whether it is acknowledged.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer
from tests.integration.batches import malformed_batches
from tests.integration.raw import SERVED, decode_response, encode_request, request_versions
from tests.integration.records import produce

PRODUCE, FETCH = 0, 1


@dataclass
class Attack:
    """One malicious input: the bytes to send on a new connection, and how long to keep it open."""

    kind: str
    payload: bytes
    linger_seconds: float = 0.0
    produce: bool = False
    """whether a response must be an error for the one batch"""


@dataclass
class Report:
    """The results of the attacks."""

    sent: Counter[str] = field(default_factory=Counter)
    refused_connections: int = 0
    acknowledged: list[str] = field(default_factory=list)
    """kinds of malformed batches that the broker accepted; must remain empty"""


class Flood:
    """Sends attacks to a broker at a given rate, from one thread: `with Flood(...) as flood`."""

    def __init__(self, address: str, topic: str, rate: int, seed: int = 1) -> None:
        host, port = address.rsplit(":", 1)
        self.report = Report()
        self._target, self._rate = (host, int(port)), rate
        self._attacks = attacks(topic, random.Random(seed))
        self._selector = selectors.DefaultSelector()
        self._open: list[tuple[float, int, socket.socket]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        allow_many_descriptors()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()
        for _, _, connection in self._open:
            connection.close()

    def _run(self) -> None:
        started = time.monotonic()
        for count, attack in enumerate(self._attacks):
            if self._stopped.is_set():
                return
            self._send(attack)
            self._serve()
            ahead = started + count / self._rate - time.monotonic()
            if ahead > 0:
                self._stopped.wait(ahead)

    def _send(self, attack: Attack) -> None:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT left
        connection.settimeout(5)
        try:
            connection.connect(self._target)
            connection.sendall(attack.payload)
        except OSError:
            self.report.refused_connections += 1
            connection.close()
            return
        self.report.sent[attack.kind] += 1
        connection.setblocking(False)
        heapq.heappush(self._open, (time.monotonic() + attack.linger_seconds, connection.fileno(), connection))
        if attack.produce:
            self._selector.register(connection, selectors.EVENT_READ, attack.kind)

    def _serve(self) -> None:
        """Check received responses, and close connections whose time is over."""
        for key, _ in self._selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            self._selector.unregister(key.fileobj)
            if is_acknowledged(key.fileobj):
                self.report.acknowledged.append(str(key.data))
        while self._open and self._open[0][0] <= time.monotonic():
            _, _, connection = heapq.heappop(self._open)
            if connection in self._selector.get_map():
                self._selector.unregister(connection)
            connection.close()


def allow_many_descriptors() -> None:
    """Raise the file descriptor limit of this process to its maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def preload(address: str, topic: str, megabytes: int = 60) -> None:
    """Produce data for the clients that request large responses."""
    produce(address, topic, [b"x" * 900_000] * (megabytes * 2**20 // 900_000), partition=0)


def is_acknowledged(connection: socket.socket) -> bool:
    """Whether a produce response says that its batch was appended."""
    try:
        answer = connection.recv(65536)
        response = decode_response(PRODUCE, 9, 1, answer[4:])
    except (OSError, ValueError, AssertionError, IndexError):
        return False
    return any(partition.error_code == 0 for topic in response.responses for partition in topic.partition_responses)


def attacks(topic: str, chance: random.Random) -> Iterator[Attack]:
    """Return an endless mix of attacks, each kind in turn."""
    kinds = [
        itertools.cycle(garbage(chance)),
        itertools.cycle(absurd_lengths()),
        itertools.cycle(malformed_produce(topic)),
        itertools.cycle(truncated_requests(chance)),
        itertools.cycle(unknown_requests()),
        itertools.cycle([Attack("opened and closed", b"")]),
        itertools.cycle(half_open_frames()),
        itertools.cycle([Attack("64 MB announced, never sent", _frame_length(64 * 2**20), linger_seconds=2.0)]),
        itertools.cycle([greedy_reader(topic)]),
    ]
    for kind in itertools.cycle(kinds):
        yield next(kind)


def garbage(chance: random.Random) -> list[Attack]:
    return [Attack("garbage", chance.randbytes(chance.randint(1, 3000)), 0.05) for _ in range(200)]


def absurd_lengths() -> list[Attack]:
    lengths = [-1, -(2**31), 2**31 - 1, 2**30, 0, 1, 3, 0x16030100, 0x47455420]
    return [Attack("absurd length", _frame_length(length) + b"\0\x03\0\x09", 0.05) for length in lengths]


def malformed_produce(topic: str) -> list[Attack]:
    """Yield produce requests with malformed batches; a response must be an error."""
    found = []
    for fault, batch in malformed_batches().items():
        data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
        request = encode_request(PRODUCE, 9, acks=-1, timeout=1000, topic_data=data)
        found.append(Attack(f"batch: {fault}", _framed(request), linger_seconds=2.0, produce=True))
    return found


def truncated_requests(chance: random.Random) -> list[Attack]:
    """Yield truncated requests of every API, in complete frames."""
    whole = [encode_request(key, request_versions(key)[-1]) for key in SERVED for _ in range(4)]
    cut = [one[: chance.randint(8, len(one) - 1)] for one in whole]
    return [Attack("truncated request", _framed(one), 0.05) for one in cut]


def unknown_requests() -> list[Attack]:
    header = [(0x7000, 0), (-1, 0), (3, 99), (0, -1), (18, 999), (5, 0), (1000, 3)]
    return [Attack("unknown request", _framed(struct.pack(">hhih", *one, 1, -1) + b"\0" * 20), 0.05) for one in header]


def half_open_frames() -> list[Attack]:
    """Yield incomplete frames that then stall: a thousand of them are open at any time."""
    whole = _framed(encode_request(3, 9))
    return [Attack("half-open frame", whole[:size], linger_seconds=9.0) for size in range(1, len(whole))]


def greedy_reader(topic: str) -> Attack:
    """Requests 50 MB and never reads the response."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * 2**20}
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50 * 2**20, "session_epoch": -1}
    topics = [{"topic": topic, "partitions": [partition]}]
    request = encode_request(FETCH, 12, **limits, topics=topics, forgotten_topics_data=[], rack_id="")
    return Attack("greedy reader", _framed(request) * 3, linger_seconds=1.0)


def _framed(payload: bytes) -> bytes:
    return _frame_length(len(payload)) + payload


def _frame_length(length: int) -> bytes:
    return struct.pack(">i", length)


class GoodClient:
    """Sends small messages at a steady rate, and records errors and the latency of each acknowledgement."""

    def __init__(self, address: str, topic: str, rate: int = 200) -> None:
        self.errors: list[str] = []
        self.seconds: list[float] = []
        self._topic, self._rate = topic, rate
        settings = {"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "enable.idempotence": True}
        self._producer = Producer({**settings, "error_cb": self._on_error, "log_level": 2})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GoodClient:
        self._producer.produce(self._topic, b"finds the broker; not measured")
        assert self._producer.flush(30) == 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if left := self._producer.flush(30):
            self.errors.append(f"{left} messages were not acknowledged")

    @property
    def p99_seconds(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    def _run(self) -> None:
        started = time.monotonic()
        for count in itertools.count():
            if self._stopped.is_set():
                return
            due = started + count / self._rate
            while (ahead := due - time.monotonic()) > 0:
                self._producer.poll(min(ahead, 0.005))
            self._producer.produce(self._topic, b"well-behaved %d" % count, on_delivery=self._on_delivery)
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.seconds.append(message.latency() or 0.0)

    def _on_error(self, error: KafkaError) -> None:
        self.errors.append(str(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--topic", default="hostile")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=1000)
    options = parser.parse_args()
    preload(options.address, options.topic)
    with (
        GoodClient(options.address, options.topic + "-good") as client,
        Flood(options.address, options.topic, options.rate) as flood,
    ):
        threading.Event().wait(options.seconds)
    sys.stdout.write(f"bad inputs {sum(flood.report.sent.values())}: {dict(flood.report.sent)}\n")
    sys.stdout.write(f"connections refused {flood.report.refused_connections}\n")
    sys.stdout.write(f"malformed batches acknowledged {flood.report.acknowledged}\n")
    sys.stdout.write(f"well-behaved client: {len(client.seconds)} acknowledged, errors {client.errors[:5]}, ")
    sys.stdout.write(f"p99 {client.p99_seconds * 1000:.1f} ms, worst {max(client.seconds) * 1000:.1f} ms\n")
    return 1 if client.errors or flood.report.acknowledged else 0


if __name__ == "__main__":
    sys.exit(main())
