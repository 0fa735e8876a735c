"""Queues over HTTP with a real `headrace serve`: pull and settle, with disconnects and kills."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.integration.conftest import StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until

Json = dict[str, Any]


class Http:
    """A REST client of queues."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.session = requests.Session()

    def ask(self, method: str, path: str, body: Any = None, **params: Any) -> requests.Response:
        url = f"http://127.0.0.1:{self.broker.http_port}{path}"
        return self.session.request(method, url, json=body, params=params, timeout=PATIENCE_SECONDS)

    def get(self, path: str, **params: Any) -> Json:
        response = self.ask("GET", path, **params)
        assert response.status_code == 200, response.text
        shown: Json = response.json()
        return shown

    def post(self, path: str, body: Any) -> Json:
        response = self.ask("POST", path, body)
        assert response.status_code in (200, 201), response.text
        shown: Json = response.json()
        return shown

    def pull(self, **params: Any) -> list[Json]:
        messages: list[Json] = self.get("/subscriptions/workers/messages", **params)["messages"]
        return messages

    def ack(self, **which: Any) -> Json:
        return self.post("/subscriptions/workers/ack", which)

    def backlog(self) -> int:
        return int(self.get("/topics/jobs/subscriptions/workers")["backlog"])


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return prepared(broker)


def prepared(broker: BrokerProcess) -> Http:
    http = Http(broker)
    http.post("/topics", {"name": "jobs", "partitions": 2})
    http.post("/topics/jobs/subscriptions", {"name": "workers", "start": "earliest"})
    return http


def publish(http: Http, *values: Any) -> None:
    for value in values:
        http.post("/topics/jobs/messages", value)


def pull_all(http: Http, count: int, **params: Any) -> list[Json]:
    """Pull until this number of messages has arrived."""
    messages: list[Json] = []
    while len(messages) < count:
        found = http.pull(wait="10s", **params)
        assert found, f"only {len(messages)} of {count} came"
        messages += found
    return messages


def test_messages_are_pulled_and_settled(http: Http) -> None:
    publish(http, *({"n": number} for number in range(5)))
    messages = sorted(pull_all(http, 5), key=lambda one: int(one["value"]["n"]))
    acked, by_id, nacked, rejected, extended = messages
    assert http.ack(receipt=acked["receipt"]) == {"settled": 1, "refused": []}
    assert http.ack(message_id=by_id["message_id"]) == {"settled": 1, "refused": []}
    nack = {"receipt": nacked["receipt"], "delay": "100ms", "reason": "busy"}
    assert http.post("/subscriptions/workers/nack", nack)["settled"] == 1
    reject = {"receipt": rejected["receipt"], "reason": "broken"}
    assert http.post("/subscriptions/workers/reject", reject)["settled"] == 1
    extend = {"receipt": extended["receipt"], "lease": "5m"}
    assert http.post("/subscriptions/workers/extend", extend)["settled"] == 1
    (again,) = pull_all(http, 1)
    assert (again["value"], again["attempt"]) == (nacked["value"], 2)
    assert http.ack(receipts=[again["receipt"], extended["receipt"]]) == {"settled": 2, "refused": []}
    wait_until(lambda: http.backlog() == 0, "the rejected message is a dead letter")
    assert http.pull() == []

    (letter,) = http.get("/subscriptions/workers/dead-letters")["dead_letters"]
    assert (letter["value"], letter["reason"]) == (rejected["value"], "broken")
    assert http.post("/subscriptions/workers/redrive", {"dry_run": True})["settled"] == 1
    assert http.post("/subscriptions/workers/redrive", {})["settled"] == 1
    (redriven,) = pull_all(http, 1)
    assert (redriven["message_id"], redriven["attempt"]) == (rejected["message_id"], 1)
    http.ack(receipt=redriven["receipt"])

    http.post("/subscriptions/workers/seek", {"to": "start"})
    assert len(pull_all(http, 5)) == 5, "the redrive has published nothing"


def test_a_lost_lease_is_a_409(http: Http) -> None:
    publish(http, 1)
    (late,) = pull_all(http, 1, lease="100ms")
    (again,) = pull_all(http, 1)
    assert again["attempt"] == 2
    response = http.ask("POST", "/subscriptions/workers/ack", {"receipt": late["receipt"]})
    assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
    assert http.ack(receipt=again["receipt"])["settled"] == 1


def test_two_clients_share_the_messages(http: Http) -> None:
    publish(http, *range(40))
    other = Http(http.broker)
    seen: list[int] = []

    def work(client: Http) -> None:
        while messages := client.pull(max_messages=3, wait="1s"):
            seen.extend(one["value"] for one in messages)
            client.ack(message_ids=[one["message_id"] for one in messages])

    run_together(lambda: work(http), lambda: work(other))
    assert sorted(seen) == list(range(40))
    assert http.backlog() == 0


@pytest.mark.parametrize("is_abrupt", [True, False])
def test_a_disconnected_long_poll_leases_nothing(http: Http, is_abrupt: bool) -> None:
    assert http.pull() == []
    before = socket_count(http.broker)
    gone = socket.create_connection(("127.0.0.1", http.broker.http_port))
    gone.sendall(b"GET /subscriptions/workers/messages?wait=60s HTTP/1.1\r\nhost: x\r\n\r\n")
    wait_until(lambda: socket_count(http.broker) > before, "the broker has taken the connection")
    http.backlog()  # what was sent before this is being worked on
    if is_abrupt:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    wait_until(lambda: socket_count(http.broker) == before, "the broker notices that its client has gone")
    publish(http, 1)
    (message,) = pull_all(http, 1)
    assert (message["value"], message["attempt"]) == (1, 1)


def socket_count(broker: BrokerProcess) -> int:
    """Return the number of sockets of the process, including closed ones; it may change during the count."""
    count = 0
    for path in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(path).startswith("socket:")
    return count


def test_a_long_poll_returns_when_a_message_arrives(http: Http) -> None:
    found: list[list[Json]] = []
    began = time.monotonic()
    run_together(lambda: found.append(http.pull(wait="60s")), lambda: publish(Http(http.broker), 1))
    assert [one["value"] for one in found[0]] == [1]
    assert time.monotonic() - began < 30


def test_leases_end_with_a_kill_and_acks_survive(start_broker: StartBroker) -> None:
    broker = start_broker()
    http = prepared(broker)
    publish(http, "done", "open")
    messages = {one["value"]: one for one in pull_all(http, 2)}
    http.ack(message_id=messages["done"]["message_id"])
    broker.restart()
    for which in ("message_id", "receipt"):
        response = http.ask("POST", "/subscriptions/workers/ack", {which: messages["open"][which]})
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost"), "leases are in memory"
    (again,) = pull_all(http, 1)
    assert (again["value"], again["attempt"]) == ("open", 1)
    assert http.ack(message_id=again["message_id"])["settled"] == 1
    assert http.pull() == []


def run_together(*works: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    for failure in failures:
        raise failure
