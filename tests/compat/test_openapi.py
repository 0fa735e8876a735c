"""Every response of the REST API agrees with the served OpenAPI description, whatever schemathesis sends.

Two runs: with generated names, most of which do not exist, and with the names of an existing topic, message and
subscription. Streams do not end and are tested elsewhere; waits are shortened.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.integration.process import BrokerProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
THERE = {"topic": "orders", "subscription": "billing", "message_id": "orders:0:0"}
SHORT = {"wait": "50ms", "timeout": "50ms"}
PARTITIONS_MAX = 3
NO_REPLY = 504

TRIED = settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

pytestmark = pytest.mark.filterwarnings("ignore")  # schemathesis warns of what it cannot make use of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("openapi"), {"num.partitions": "1"}).start()
    yield broker
    assert broker.running, broker.log_tail()
    assert "Traceback" not in broker.log_text(), broker.log_tail()
    broker.stop()


@pytest.fixture(scope="module")
def url(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.http_port}"


@pytest.fixture(scope="module")
def served(url: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path_regex="/stream$")


def create_objects(url: str) -> None:
    """Create a topic with a delayed and an undelayed message, and a subscription."""
    for headers in ({}, {"Headrace-Delay": "10d"}):
        requests.post(f"{url}/topics/orders/messages", json={"n": 1}, headers=headers, timeout=30)
    response = requests.post(
        f"{url}/topics/orders/subscriptions", json={"name": "billing", "start": "earliest"}, timeout=30
    )
    assert response.status_code in (200, 201), response.text


def send(case: Any) -> None:
    if isinstance(case.query, dict):
        case.query.update({name: short for name, short in SHORT.items() if name in case.query})
    if isinstance(case.body, dict) and isinstance(case.body.get("partitions"), int):
        case.body["partitions"] = min(case.body["partitions"], PARTITIONS_MAX)  # a thousand requests take long
    response = case.call(timeout=60)
    if response.status_code == NO_REPLY and (case.query or {}).get("wait_for") == "reply":
        assert response.json()["code"] == "no_reply"
        return
    case.validate_response(response, checks=CHECKS)


def try_all(served: Any, attempt: Callable[[Any], None]) -> None:
    """Call every operation with valid and invalid input."""
    for found in served.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            try:
                cases = operation.as_strategy(generation_mode=mode)
                TRIED(given(case=cases)(attempt))()
            except Unsatisfiable:
                continue  # a request without parameters has no invalid form


def test_every_response_to_generated_input_is_described(served: Any) -> None:
    def attempt(case: Any) -> None:
        send(case)

    try_all(served, attempt)


def test_every_response_about_existing_objects_is_described(served: Any, url: str) -> None:
    def attempt(case: Any) -> None:
        names = case.path_parameters if isinstance(case.path_parameters, dict) else {}
        if not names:
            return  # the other test covers it
        create_objects(url)
        names.update({name: known for name, known in THERE.items() if name in names})
        if "/scheduled/" in case.operation.path:
            names["message_id"] = "__delayed.orders:0:0"
        send(case)

    try_all(served, attempt)
