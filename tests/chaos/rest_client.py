"""One HTTP client of a queue, in a process of its own, until SIGTERM. It alternates between two gateways.

    python -m tests.chaos.rest_client ROLE NAME GATEWAYS RATE

A publisher sends each message with an `Idempotency-Key`, at one gateway after the other until one confirms it; one
that is due later is sent once, because its key is not checked. A worker pulls at one gateway and settles by receipt at
the other. Both print what `tests.chaos.queue_client` prints, so that the same rules check it.
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
"""to connect, and to wait: longer than a gateway waits for a broker"""
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
    note("end", now_ms())


def note(*what: Any) -> None:
    """Threads print whole lines."""
    with _output:
        emit(*what)
        sys.stdout.flush()


class Gateways:
    """Each request goes to the next gateway; connections are those of one thread."""

    def __init__(self, addresses: list[str], first: int = 0) -> None:
        self._turns = itertools.cycle(addresses[first:] + addresses[:first])
        self._session = requests.Session()

    def request(self, method: str, path: str, **options: Any) -> requests.Response | None:
        """None when no response came: the request may have taken effect."""
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
                # What cannot be sent in time is left out: an outage is not followed by a flood.
                if self._slots.acquire(blocking=False):
                    pool.submit(self._publish, number).add_done_callback(self._on_published)
                if _stop.wait(1 / rate):
                    return

    def _on_published(self, done: Future[None]) -> None:
        self._slots.release()
        if (error := done.exception()) is not None:
            note("error", now_ms(), repr(error))

    def _publish(self, number: int) -> None:
        kind = POISON if number % 20 == 7 else STUBBORN if number % 50 == 11 else ORDINARY
        value = f"{kind} {self._name}-{number}"
        began, is_delayed = now_ms(), number % 5 == 2
        due = began + int(self._chance.uniform(0.0, DELAY_SECONDS_MAX) * 1000) if is_delayed else None
        note("publish", began, value, due)
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
                note("published", now_ms(), value)
                break
            if response is not None and response.status_code < 500:
                note("error", now_ms(), f"{value!r} was refused: {response.status_code} {response.text}")
                return
            if due is not None:
                return  # a second attempt could be stored a second time
            if now_ms() > began + PUBLISH_SECONDS * 1000:
                note("error", now_ms(), f"{value!r} could not be published: {response and response.text}")
                return
            time.sleep(RETRY_SECONDS)
        if due is not None and number % 20 == 12:
            note("cancel", now_ms(), value)
            identifier = response.json()["message_id"]
            response = gateways.request("DELETE", f"/topics/{REST_JOBS}/scheduled/{identifier}")
            if response is not None and response.ok:
                note("cancelled", now_ms(), value)


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
                note("error", now_ms(), f"pull was refused: {response.status_code} {response.text}")
            _stop.wait(RETRY_SECONDS)
            continue
        for message in response.json()["messages"]:
            number = next(numbers)
            until = int(datetime.fromisoformat(message["lease_until"]).timestamp() * 1000)
            granted = until - int(LEASE_SECONDS * 1000)
            note("lease", number, message["value"], message["message_id"], message["attempt"], granted, until)
            settle(gateways, path, number, message, chance)


def settle(gateways: Gateways, path: str, number: int, message: dict[str, Any], chance: random.Random) -> None:
    """As the message wants it. A settle without a response is repeated once, at the other gateway; then a refusal says
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
    note("settle", number, now_ms(), how, delay_ms)
    first = gateways.request("POST", f"{path}/{how}", json=body)
    response = gateways.request("POST", f"{path}/{how}", json=body) if first is None else first
    if response is None or response.status_code >= 500:
        return
    if response.status_code == 200:
        note("settled", number, now_ms())
    elif response.status_code != 409:
        note("error", now_ms(), f"{how} was refused: {response.status_code} {response.text}")
    elif response is first:
        note("refused", number, now_ms(), response.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
