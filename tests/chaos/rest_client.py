"""The process of one HTTP client of a queue, which alternates between two gateways, until SIGTERM.

    python -m tests.chaos.rest_client ROLE NAME GATEWAYS RATE

A publisher sends each message with an `Idempotency-Key` to one gateway after the other until one confirms it. It sends
a delayed message once, because its key is not checked. A worker pulls from one gateway and settles by receipt at the
other. The output has the format of `tests.chaos.queue_client`, so that the same rules apply.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event, Lock, Semaphore
from typing import Any

import requests
from tests.chaos.client import emit
from tests.chaos.names import REST_JOBS
from tests.chaos.queue_client import (
    ACK_HOW,
    DELAY_SECONDS_MAX,
    KEYS,
    NACK,
    ORDINARY,
    PATIENT_ATTEMPTS,
    POISON,
    PUBLISH_SECONDS,
    REJECT,
    STUBBORN,
    now_ms,
)

SUBSCRIPTION = "rest-workers"
LEASE_SECONDS = 4.0
TIMEOUT_SECONDS = (2.0, 25.0)
"""the time limits to connect and to wait for a response: longer than a gateway waits for a broker"""
IN_FLIGHT_MAX = 16
PULLS = 2
MESSAGES_MAX = 5
RETRY_SECONDS = 0.3

_stop = Event()
_output = Lock()


def main(role: str, name: str, gateways: str, rate: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    if role == "publisher":
        Publisher(name, gateways.split(",")).run(float(rate))
    else:
        work(name, gateways.split(","))
    emit_line("end", now_ms())


def emit_line(*what: Any) -> None:
    """Print a line; threads print whole lines."""
    with _output:
        emit(*what)
        sys.stdout.flush()


class Gateways:
    """Sends each request to the next gateway; each thread has its own connections."""

    def __init__(self, addresses: list[str], first: int = 0) -> None:
        self._turns = itertools.cycle(addresses[first:] + addresses[:first])
        self._session = requests.Session()

    def request(self, method: str, path: str, **options: Any) -> requests.Response | None:
        """Return None without a response: the request may have taken effect."""
        url = f"http://{next(self._turns)}{path}"
        try:
            return self._session.request(method, url, timeout=TIMEOUT_SECONDS, **options)
        except requests.RequestException:
            return None


class Publisher:
    def __init__(self, name: str, addresses: list[str]) -> None:
        self._name, self._addresses, self._chance = name, addresses, random.Random(name)
        self._slots = Semaphore(IN_FLIGHT_MAX)

    def run(self, rate: float) -> None:
        with ThreadPoolExecutor(IN_FLIGHT_MAX) as pool:
            for number in itertools.count():
                # Messages that cannot be sent in time are skipped, so that no flood follows an outage.
                if self._slots.acquire(blocking=False):
                    pool.submit(self._publish, number).add_done_callback(self._on_published)
                if _stop.wait(1 / rate):
                    return

    def _on_published(self, done: Future[None]) -> None:
        self._slots.release()
        if (error := done.exception()) is not None:
            emit_line("error", now_ms(), repr(error))

    def _publish(self, number: int) -> None:
        kind = POISON if number % 20 == 7 else STUBBORN if number % 50 == 11 else ORDINARY
        value = f"{kind} {self._name}-{number}"
        began, is_delayed = now_ms(), number % 5 == 2
        due = began + int(self._chance.uniform(0.0, DELAY_SECONDS_MAX) * 1000) if is_delayed else None
        emit_line("publish", began, value, due)
        headers = {"content-type": "text/plain", "headrace-key": str(number % KEYS)}
        if due is None:
            headers["idempotency-key"] = value
        else:
            headers["headrace-deliver-at"] = datetime.fromtimestamp(due / 1000, UTC).isoformat()
        gateways = Gateways(self._addresses, number % 2)
        path = f"/topics/{REST_JOBS}/messages"
        while True:
            response = gateways.request("POST", path, data=value.encode(), headers=headers)
            if response is not None and response.status_code == 201:
                emit_line("published", now_ms(), value)
                break
            if response is not None and response.status_code < 500:
                emit_line("error", now_ms(), f"{value!r} was rejected: {response.status_code} {response.text}")
                return
            if due is not None:
                return  # a repeated request could store a second message
            if now_ms() > began + PUBLISH_SECONDS * 1000:
                emit_line("error", now_ms(), f"{value!r} could not be published: {response and response.text}")
                return
            time.sleep(RETRY_SECONDS)
        if due is not None and number % 20 == 12:
            emit_line("cancel", now_ms(), value)
            identifier = response.json()["message_id"]
            response = gateways.request("DELETE", f"/topics/{REST_JOBS}/scheduled/{identifier}")
            if response is not None and response.ok:
                emit_line("cancelled", now_ms(), value)


def work(name: str, addresses: list[str]) -> None:
    numbers = itertools.count()
    with ThreadPoolExecutor(PULLS) as pool:
        pulls = [pool.submit(pull, addresses, at, random.Random(f"{name} {at}"), numbers) for at in range(PULLS)]
    for one in pulls:
        one.result()


def pull(addresses: list[str], at: int, chance: random.Random, numbers: itertools.count[int]) -> None:
    gateways = Gateways(addresses, at % len(addresses))
    parameters = {"max_messages": MESSAGES_MAX, "wait": "2s", "lease": f"{LEASE_SECONDS:g}s"}
    path = f"/subscriptions/{SUBSCRIPTION}"
    while not _stop.is_set():
        response = gateways.request("GET", f"{path}/messages", params=parameters)
        if response is None or response.status_code != 200:
            if response is not None and response.status_code < 500:
                emit_line("error", now_ms(), f"pull was rejected: {response.status_code} {response.text}")
            _stop.wait(RETRY_SECONDS)
            continue
        for message in response.json()["messages"]:
            number = next(numbers)
            until = int(datetime.fromisoformat(message["lease_until"]).timestamp() * 1000)
            granted = until - int(LEASE_SECONDS * 1000)
            emit_line("lease", number, message["value"], message["message_id"], message["attempt"], granted, until)
            settle(gateways, path, number, message, chance)


def settle(gateways: Gateways, path: str, number: int, message: dict[str, Any], chance: random.Random) -> None:
    """Settle a message by its kind. Repeat a settle without a response once, at the other gateway; an error then says
    nothing about the first attempt."""
    kind, body = message["value"].split()[0], {"receipt": message["receipt"]}
    how, delay_ms = ACK_HOW, None
    if kind == POISON:
        how = REJECT
    elif kind == STUBBORN:
        how, delay_ms = NACK, 0
    elif message["attempt"] <= PATIENT_ATTEMPTS and chance.random() < 0.1:
        how, delay_ms = NACK, int(chance.uniform(0.0, 1.5) * 1000)
    if delay_ms is not None:
        body["delay"] = f"{delay_ms}ms"
    emit_line("settle", number, now_ms(), how, delay_ms)
    first = gateways.request("POST", f"{path}/{how}", json=body)
    response = gateways.request("POST", f"{path}/{how}", json=body) if first is None else first
    if response is None or response.status_code >= 500:
        return
    if response.status_code == 200:
        emit_line("settled", number, now_ms())
    elif response.status_code != 409:
        emit_line("error", now_ms(), f"{how} was rejected: {response.status_code} {response.text}")
    elif response is first:
        emit_line("refused", number, now_ms(), response.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
