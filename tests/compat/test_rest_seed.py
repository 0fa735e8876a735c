"""The two client programs of the design run unchanged except for host and token; REST and Kafka clients share topics.

The programs use `requests`, `json=message`, 201 and `message_id`, pull by the subscription only, and ack by message id.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import Consumer, Producer
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

PUBLISHER = '''
import requests

def publish_message(topic: str, message: dict):
    """Publish message to topic with acknowledgment handling"""
    response = requests.post(
        f"https://mq.example.com/topics/{topic}/messages",
        json=message,
        headers={"Authorization": "Bearer <token>"}
    )

    if response.status_code == 201:
        ack_data = response.json()
        message_id = ack_data["message_id"]
        print(f"Message {message_id} acknowledged")
        return message_id
    else:
        raise Exception(f"Failed to publish: {response.text}")
'''

CONSUMER = '''
def consume_messages(subscription_id: str, max_messages: int = 10):
    """Pull messages from subscription"""
    response = requests.get(
        f"https://mq.example.com/subscriptions/{subscription_id}/messages",
        params={"max_messages": max_messages}
    )

    messages = response.json()["messages"]

    for msg in messages:
        try:
            # Process message
            process_message(msg)
            # Acknowledge successful processing
            ack_message(subscription_id, msg["message_id"])
        except Exception as e:
            print(f"Failed to process message {msg['message_id']}: {e}")

def ack_message(subscription_id: str, message_id: str):
    """Acknowledge message consumption"""
    requests.post(
        f"https://mq.example.com/subscriptions/{subscription_id}/ack",
        json={"message_id": message_id}
    )
'''


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("rest")).start()
    yield broker
    broker.stop()


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.http_port}"


def program(url: str, process_message: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the definitions of the design's programs, with the host of this broker."""
    names: dict[str, Any] = {"process_message": process_message}
    exec(PUBLISHER.replace("https://mq.example.com", url) + CONSUMER.replace("https://mq.example.com", url), names)
    return names


def subscribe(url: str, topic: str, name: str) -> None:
    made = requests.post(f"{url}/topics/{topic}/subscriptions", json={"name": name, "start": "earliest"}, timeout=30)
    assert made.status_code == 201, made.text


def test_the_programs_of_the_design_run_unchanged(url: str, name: str) -> None:
    seen: list[dict[str, Any]] = []
    failing: list[str] = []

    def process_message(message: dict[str, Any]) -> None:
        seen.append(message)
        if message["value"]["n"] in failing:
            raise ValueError("cannot")

    seed = program(url, process_message)
    requests.post(f"{url}/topics", json={"name": name, "partitions": 3}, timeout=30)
    subscribe(url, name, f"{name}-workers")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ids = [seed["publish_message"](name, {"n": number, "text": "caf\u00e9"}) for number in range(25)]
    assert said.getvalue().splitlines() == [f"Message {message_id} acknowledged" for message_id in ids]
    for _ in range(10):
        seed["consume_messages"](f"{name}-workers")
    assert sorted(message["message_id"] for message in seen) == sorted(ids)
    assert sorted(message["value"]["n"] for message in seen) == list(range(25))
    status = requests.get(f"{url}/topics/{name}/messages/{ids[0]}/ack", timeout=30).json()
    assert status["acknowledged"]
    assert status["subscriptions"][0]["how"] == "ack"


def test_the_program_of_the_design_does_not_ack_a_failed_message(url: str, name: str) -> None:
    def process_message(message: dict[str, Any]) -> None:
        raise ValueError(f"cannot work on {message['value']}")

    seed = program(url, process_message)
    with contextlib.redirect_stdout(io.StringIO()):
        message_id = seed["publish_message"](name, {"n": 1})
    subscribe(url, name, f"{name}-workers")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        seed["consume_messages"](f"{name}-workers", max_messages=1)
    assert said.getvalue() == f"Failed to process message {message_id}: cannot work on {{'n': 1}}\n"
    status = requests.get(f"{url}/topics/{name}/messages/{message_id}/ack", timeout=30).json()
    assert status["subscriptions"][0]["state"] == "leased"


def test_a_rejected_publish_raises_with_the_text_of_the_problem(url: str, name: str) -> None:
    seed = program(url, lambda _: None)
    with pytest.raises(Exception, match=r"Failed to publish: .*invalid_topic"):
        seed["publish_message"](f"{name} with spaces", {"n": 1})


def test_what_is_published_by_rest_is_read_by_kafkas_client(broker: BrokerProcess, url: str, name: str) -> None:
    response = requests.post(
        f"{url}/topics/{name}/messages", json={"n": 1}, headers={"Headrace-Key": "c-42", "Headrace-Header-Trace": "t"}
    )
    assert response.status_code == 201
    settings = {"bootstrap.servers": broker.address, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([name])
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        assert (message.key(), json.loads(message.value() or b"")) == (b"c-42", {"n": 1})
        assert message.headers() == [("trace", b"t")]
        assert response.json()["message_id"] == f"{name}:{message.partition()}:{message.offset()}"
    finally:
        consumer.close()


def test_what_kafkas_client_writes_is_pulled_by_rest(broker: BrokerProcess, url: str, name: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producer.produce(name, key="c-42", value=b'{"n": 1.50}', headers={"trace": b"t"})
    producer.produce(name, key="c-42", value=b"\xff\x00")
    assert producer.flush(PATIENCE_SECONDS) == 0
    subscribe(url, name, f"{name}-workers")
    pulled = requests.get(f"{url}/subscriptions/{name}-workers/messages", params={"wait": "30s"}, timeout=60)
    first, second = pulled.json()["messages"]
    assert b'"value":{"n": 1.50}' in pulled.content
    assert (first["key"], first["headers"], first["attempt"]) == ("c-42", {"trace": "t"}, 1)
    assert second["value_base64"] == "/wA="
    receipts = {"receipts": [first["receipt"], second["receipt"]]}
    settled = requests.post(f"{url}/subscriptions/{name}-workers/ack", json=receipts, timeout=30)
    assert settled.json() == {"settled": 2, "refused": []}


def test_the_programs_are_those_of_the_design() -> None:
    """The programs in this file are those of the design, not simplified ones."""
    seed = Path("/work/shared/seeds/001_bda88b26892a6f9f.txt")
    if not seed.exists():
        pytest.skip("the seeds are not on this machine")
    text = seed.read_text()
    assert PUBLISHER.strip() in text
    assert CONSUMER.strip() in text
