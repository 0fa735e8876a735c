"""Gateways and their brokers are killed, and no acknowledged message is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
from tests.integration.gateways import Caller, GatewayProcess, make_token, revoke_token
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.test_brokers import BrokersProcess

StartGateway = Callable[..., GatewayProcess]
RETRIABLE = 503


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """`start_gateway(bootstrap, *options)`; the gateway is stopped at the end of the test."""
    started: list[GatewayProcess] = []

    def start(bootstrap: str, *options: str) -> GatewayProcess:
        gateway = GatewayProcess(tmp_path / f"gateway-{len(started)}", bootstrap, *options)
        started.append(gateway)
        return gateway.start()

    yield start
    for gateway in started:
        gateway.stop()


WEDGED_GATEWAY = """
import sys, threading
from headrace.server import gateway
from headrace.server.gateway_settings import GatewaySettings

gateway.WEDGED_SECONDS = 1.0
gateway.Reach.run = lambda _: wedge()

async def wedge():
    threading.Event().wait(60)

settings = GatewaySettings.of(bootstrap="127.0.0.1:1", http="127.0.0.1:0", tls=(None, None))
sys.exit(gateway.run_gateway(settings))
"""


def test_a_gateway_whose_event_loop_hangs_exits() -> None:
    ended = subprocess.run([sys.executable, "-c", WEDGED_GATEWAY], capture_output=True, timeout=30, check=False)
    assert ended.returncode == 70, ended.stderr
    assert b"the event loop hangs" in ended.stderr


class Publishing:
    """Publishes increasing numbers until it is stopped; `acknowledged` are those with a 201 response."""

    def __init__(self, caller: Caller, topic: str, name: str) -> None:
        self.acknowledged: list[str] = []
        self._caller, self._topic, self._name = caller, topic, name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            try:
                response = self._caller.post(f"/topics/{self._topic}/messages", {"n": f"{self._name}-{number}"})
            except requests.ConnectionError:
                return  # its gateway is gone
            if response.status_code == 201:
                self.acknowledged.append(f"{self._name}-{number}")
            else:
                assert response.status_code == RETRIABLE, response.text


class Working:
    """Pulls and acks until it is stopped. `acked` are those whose ack was confirmed, `unsure` those whose ack was not
    answered, so that it may have taken effect or not. `deliveries` are all, with the time at which they were asked for,
    and `acked` has the time at which the ack was confirmed."""

    def __init__(self, caller: Caller, subscription: str) -> None:
        self.acked: dict[str, float] = {}
        self.unsure: list[str] = []
        self.deliveries: list[tuple[str, float]] = []
        self._caller, self._subscription = caller, subscription
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            asked_at = time.monotonic()
            try:
                response = self._caller.get(
                    f"/subscriptions/{self._subscription}/messages?max_messages=20&wait=1s&lease=5s"
                )
                if response.status_code == 200 and (messages := response.json()["messages"]):
                    self._settle(messages, asked_at)
            except requests.ConnectionError:
                return

    def _settle(self, messages: list[dict[str, Any]], asked_at: float) -> None:
        values = [message["value"]["n"] for message in messages]
        self.deliveries += [(value, asked_at) for value in values]
        receipts = [message["receipt"] for message in messages]
        try:
            response = self._caller.post(f"/subscriptions/{self._subscription}/ack", {"receipts": receipts})
        except requests.ConnectionError:
            self.unsure += values
            raise
        if response.status_code == 200:
            refused = {one["receipt"] for one in response.json()["refused"]}
            for value, receipt in zip(values, receipts, strict=True):
                if receipt not in refused:
                    self.acked.setdefault(value, time.monotonic())
        elif response.status_code == RETRIABLE:
            self.unsure += values


def test_a_gateway_is_ready_when_a_broker_responds(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address)
    caller = Caller(gateway)
    assert gateway.is_ready()
    caller.make_topic("orders")
    caller.subscribe("orders", "billing")
    response = caller.post("/topics/orders/messages", {"id": 1})
    assert response.status_code == 201
    (message,) = caller.pull("billing", wait="10s")
    assert (message["message_id"], message["value"]) == (response.json()["message_id"], {"id": 1})
    text = caller.get("/metrics").text
    assert f'headrace_broker_circuit_state{{broker="{broker.address}",state="closed"}} 1' in text
    assert gateway.terminate() == 0


def test_a_gateway_waits_for_its_first_broker(tmp_path: Path, start_gateway: StartGateway) -> None:
    late = BrokerProcess(tmp_path / "late")
    gateway = GatewayProcess(tmp_path / "early", late.address).launch()
    try:
        wait_until(lambda: _status(gateway, "/livez") == 200, "the gateway lives")
        assert _status(gateway, "/readyz") == 503
        assert not gateway.says_ready()
        response = Caller(gateway).get("/topics")
        assert (response.status_code, response.json()["code"]) == (503, "no_broker")
        assert response.headers["retry-after"]
        late.start()
        wait_until(gateway.says_ready, "the gateway has found its broker")
        wait_until(gateway.is_ready, "the gateway is ready")
        Caller(gateway).make_topic("orders")
    finally:
        gateway.stop()
        late.stop()


def test_a_killed_gateway_does_not_affect_clients_of_another(
    broker: BrokerProcess, start_gateway: StartGateway
) -> None:
    doomed, safe = start_gateway(broker.address), start_gateway(broker.address)
    Caller(safe).make_topic("orders", partitions=3)
    Caller(safe).subscribe("orders", "billing")
    publishing = [Publishing(Caller(gateway), "orders", name) for gateway, name in ((doomed, "a"), (safe, "b"))]
    working = [Working(Caller(gateway), "billing") for gateway in (doomed, safe)]
    wait_until(lambda: all(len(one.acknowledged) >= 50 for one in publishing), "both gateways publish")
    wait_until(lambda: all(len(one.acked) >= 20 for one in working), "both gateways deliver")
    doomed.kill()
    before = len(publishing[1].acknowledged), len(working[1].acked)
    wait_until(lambda: len(publishing[1].acknowledged) >= before[0] + 100, "the other one goes on to publish")
    for one in publishing:
        one.stop()
    acknowledged = {value for one in publishing for value in one.acknowledged}
    # What the dead gateway's worker held comes to the other one when its leases are over.
    wait_until(lambda: acknowledged <= _settled(working), "everything that was acknowledged is acked")
    for worker in working:
        worker.stop()
    _assert_nothing_acked_comes_back(working)
    assert len(working[1].acked) > before[1]


def test_a_broker_is_killed_and_started_again_behind_gateways(
    broker: BrokerProcess, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(broker.address)
    caller = Caller(gateway)
    caller.make_topic("orders")
    caller.subscribe("orders", "billing")
    first = caller.post("/topics/orders/messages", {"n": "before"})
    assert first.status_code == 201
    broker.kill()
    wait_until(lambda: not gateway.is_ready(), "the gateway detects that no broker responds")
    began = time.monotonic()
    for _ in range(50):
        response = caller.post("/topics/orders/messages", {"n": "meanwhile"})
        assert (response.status_code, response.json()["code"]) == (503, "no_broker")
        assert int(response.headers["retry-after"]) >= 1
    assert time.monotonic() - began < 10, "fifty refusals are a matter of a moment, not of time-outs"
    broker.start()
    wait_until(gateway.is_ready, "the gateway sees that the broker is back")
    response = caller.post("/topics/orders/messages", {"n": "after"})
    assert response.status_code == 201
    assert sorted(_pulled(caller, "billing", 2)) == ["after", "before"]


def test_a_broker_that_hangs_is_detected(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address)
    caller = Caller(gateway)
    caller.make_topic("orders")
    broker.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not gateway.is_ready(), "the gateway detects that no broker responds")
    response = caller.post("/topics/orders/messages", {"n": "meanwhile"})
    assert (response.status_code, response.json()["code"]) == (503, "no_broker")
    broker.process.send_signal(signal.SIGCONT)
    wait_until(gateway.is_ready, "the gateway sees that the broker is back")
    assert caller.post("/topics/orders/messages", {"n": "after"}).status_code == 201


def test_gateways_follow_a_broker_failover(tmp_path: Path, start_gateway: StartGateway) -> None:
    folder = tmp_path / "brokers"
    folder.mkdir()
    brokers = BrokersProcess(folder).start()
    try:
        gateways = [start_gateway(brokers.address) for _ in range(2)]
        Caller(gateways[0]).make_topic("orders", partitions=3, replication_factor=3)
        Caller(gateways[0]).subscribe("orders", "billing")
        publishing = [Publishing(Caller(gateway), "orders", f"p{at}") for at, gateway in enumerate(gateways)]
        working = [Working(Caller(gateway), "billing") for gateway in gateways]
        wait_until(lambda: all(len(one.acknowledged) >= 30 for one in publishing), "all publish")
        wait_until(lambda: sum(len(one.acked) for one in working) >= 20, "messages are delivered")
        victim = brokers.broker(2)
        assert victim is not None
        victim.kill()
        goals = [len(one.acknowledged) + 50 for one in publishing]
        wait_until(
            lambda: all(len(one.acknowledged) >= goal for one, goal in zip(publishing, goals, strict=True)),
            "all go on to publish",
        )
        for one in publishing:
            one.stop()
        acknowledged = {value for one in publishing for value in one.acknowledged}
        wait_until(lambda: acknowledged <= _settled(working), "everything that was acknowledged is acked")
        for worker in working:
            worker.stop()
        _assert_nothing_acked_comes_back(working)
    finally:
        brokers.stop()


def test_a_stopping_gateway_completes_its_requests(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address)
    caller = Caller(gateway)
    caller.make_topic("orders")
    caller.subscribe("orders", "billing")
    answers: list[requests.Response] = []
    polling = threading.Thread(
        target=lambda: answers.append(Caller(gateway).get("/subscriptions/billing/messages?wait=60s"))
    )
    polling.start()
    wait_until(lambda: _gauge(gateway, "headrace_http_requests_in_flight") >= 1, "the pull waits")
    publishing = Publishing(Caller(gateway), "other", "x")
    wait_until(lambda: len(publishing.acknowledged) >= 5, "others publish")
    began = time.monotonic()
    assert gateway.terminate() == 0
    assert time.monotonic() - began < 30, "a pull that could wait for a minute was not waited for"
    polling.join(PATIENCE_SECONDS)
    publishing.stop()
    (response,) = answers
    assert (response.status_code, response.json()) == (200, {"messages": []})


@pytest.mark.parametrize(
    ("option", "served", "not_served"),
    [
        ("--publish-only", ("POST", "/topics/orders/messages"), ("GET", "/subscriptions/billing/messages")),
        ("--subscribe-only", ("GET", "/subscriptions/billing/messages"), ("POST", "/topics/orders/messages")),
    ],
)
def test_a_forwarder_serves_only_its_role(
    broker: BrokerProcess,
    start_gateway: StartGateway,
    option: str,
    served: tuple[str, str],
    not_served: tuple[str, str],
) -> None:
    both = Caller(start_gateway(broker.address))
    both.make_topic("orders")
    both.subscribe("orders", "billing")
    caller = Caller(start_gateway(broker.address, option))
    bodies = {"POST": {"id": 1}, "GET": None}
    assert caller.ask(*served, json=bodies[served[0]]).status_code in (200, 201)
    response = caller.ask(*not_served, json=bodies[not_served[0]])
    assert response.status_code in (404, 405)
    assert response.json()["code"] in ("not_found", "method_not_allowed")
    assert caller.get("/topics/orders").status_code == 200


def test_tokens_allow_what_their_scopes_permit(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address, "--auth")
    _, admin = make_token(broker.address, "--scope", "manage:*")
    _, narrow = make_token(broker.address, "--scope", "publish:orders")
    anonymous, manager, publisher = Caller(gateway), Caller(gateway, admin), Caller(gateway, narrow)
    assert anonymous.get("/livez").status_code == 200
    assert anonymous.get("/openapi.json").status_code == 200
    refused = anonymous.get("/topics")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    manager.make_topic("orders")
    manager.make_topic("other")
    manager.subscribe("orders", "billing")
    assert publisher.post("/topics/orders/messages", {"id": 1}).status_code == 201
    for response, scope in (
        (publisher.post("/topics/other/messages", {"id": 1}), "publish:other"),
        (publisher.get("/topics/orders"), "read:orders"),
        (publisher.get("/topics"), "read:*"),
        (publisher.ask("DELETE", "/topics/orders"), "manage:orders"),
    ):
        assert response.status_code == 403
        assert response.json()["code"] == "scope_missing"
        assert scope in response.json()["message"]
    hidden = publisher.get("/subscriptions/billing/messages")
    assert (hidden.status_code, hidden.json()["code"]) == (404, "subscription_not_found"), "its name is not confirmed"
    assert len(manager.pull("billing", wait="10s")) == 1
    assert narrow.rpartition("_")[2] not in gateway.log_text()


def test_revoked_and_expired_tokens_are_rejected(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address, "--auth")
    token_id, token = make_token(broker.address, "--scope", "read:*")
    caller = Caller(gateway, token)
    assert caller.get("/topics").status_code == 200
    revoke_token(broker.address, token_id)
    began = time.monotonic()
    wait_until(lambda: caller.get("/topics").json().get("code") == "token_unknown", "it is revoked")
    assert time.monotonic() - began < 10
    _, token = make_token(broker.address, "--scope", "read:*", "--expires", "8s")
    short = Caller(gateway, token)
    assert short.get("/topics").status_code == 200
    wait_until(lambda: short.get("/topics").json().get("code") == "token_expired", "it expires")


def test_a_token_is_limited_to_its_rate(broker: BrokerProcess, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker.address, "--auth")
    _, token = make_token(broker.address, "--scope", "read:*", "--rate", "1", "--burst", "20")
    caller = Caller(gateway, token)
    statuses = [caller.get("/topics").status_code for _ in range(40)]
    assert statuses[:20] == [200] * 20
    assert 429 in statuses
    response = caller.get("/topics")
    while response.status_code != 429:
        response = caller.get("/topics")
    assert response.json()["code"] == "rate_limited"
    assert int(response.headers["retry-after"]) >= 1
    wait_until(lambda: caller.get("/topics").status_code == 200, "the rate limit has passed")


def test_a_gateway_serves_https(broker: BrokerProcess, tmp_path: Path, start_gateway: StartGateway) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, ca = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    gateway = start_gateway(broker.address, "--http-tls-cert", str(cert), "--http-tls-key", str(key))
    url = gateway.url.replace("http:", "https:")
    assert requests.get(f"{url}/readyz", verify=str(ca), timeout=PATIENCE_SECONDS).status_code == 200
    made = requests.post(f"{url}/topics", json={"name": "orders"}, verify=str(ca), timeout=PATIENCE_SECONDS)
    assert made.status_code == 201


def test_a_gateway_that_cannot_listen_fails_with_a_message(
    broker: BrokerProcess, tmp_path: Path, start_gateway: StartGateway
) -> None:
    there = start_gateway(broker.address)
    second = GatewayProcess(tmp_path / "second", broker.address)
    second.port = there.port
    second.launch()
    assert second.wait_ended() == 1
    assert f"127.0.0.1:{there.port} is in use" in second.log_text()


def _settled(working: list[Working]) -> set[str]:
    return {value for one in working for value in [*one.acked, *one.unsure]}


def _assert_nothing_acked_comes_back(working: list[Working]) -> None:
    """A pull after a confirmed ack does not return the message, regardless of the client that acked it."""
    for value, asked_at in [delivery for one in working for delivery in one.deliveries]:
        confirmed_at = min((one.acked[value] for one in working if value in one.acked), default=asked_at)
        assert asked_at <= confirmed_at, f"{value} was acked, and came back"


def _pulled(caller: Caller, subscription: str, count: int) -> list[str]:
    found: list[str] = []

    def all_are_there() -> bool:
        found.extend(message["value"]["n"] for message in caller.pull(subscription))
        return len(found) >= count

    wait_until(all_are_there, f"{count} messages were pulled")
    return found


def _status(gateway: GatewayProcess, path: str) -> int | None:
    try:
        return requests.get(gateway.url + path, timeout=PATIENCE_SECONDS).status_code
    except requests.ConnectionError:
        return None


def _gauge(gateway: GatewayProcess, name: str) -> float:
    for line in requests.get(f"{gateway.url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return 0.0
