"""The embedded broker for users' tests: real, fast to start, and without leftovers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer

from headrace.model.errors import InvalidConfig
from headrace.sdk import AsyncClient, Client
from headrace.testkit import EmbeddedBroker


def test_published_records_survive_a_restart(tmp_path: Path) -> None:
    broker = EmbeddedBroker(folder=tmp_path / "data")
    with broker, Client(broker.address) as client:
        receipt = client.publish("orders", b"a")
        address = broker.address
        broker.stop()
        broker.start()
        assert broker.address == address
        with client.consume("orders") as stream:
            assert next(iter(stream)).id == receipt.id
    assert (tmp_path / "data").is_dir()


async def test_the_embedded_broker_runs_in_a_loop_and_leaves_nothing_behind() -> None:
    async with EmbeddedBroker() as broker:
        folder = broker._folder
        assert folder is not None
        assert os.path.isdir(folder)
        async with AsyncClient(broker.address) as client:
            assert (await client.publish("orders", b"a")).offset == 0
    assert not os.path.exists(folder)


def test_any_kafka_client_can_use_it() -> None:
    with EmbeddedBroker({"num.partitions": "1"}) as broker:
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("orders", b"from kafka")
        assert producer.flush(20) == 0
        with Client(broker.address) as client:
            message = client.subscribe("orders", "billing").take()
            assert message is not None
            assert message.value == b"from kafka"


def test_the_embedded_broker_serves_rest() -> None:
    with EmbeddedBroker({"num.partitions": "1"}) as broker, Client(broker.address) as client:
        client.create_topic("orders")
        body = json.dumps({"id": 1}).encode()
        request = Request(f"{broker.url}/topics/orders/messages", body, {"content-type": "application/json"})
        with urlopen(request, timeout=20) as response:
            assert json.load(response) == {"message_id": "orders:0:0"}
        message = client.subscribe("orders", "billing").take()
        assert message is not None
        assert message.json() == {"id": 1}


def test_two_of_them_are_two_clusters() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as two, Client(one.address) as here, Client(two.address) as there:
        here.publish("orders", b"a")
        assert there.create_topic("orders") is True


def test_an_invalid_setting_is_rejected_at_the_start() -> None:
    broker = EmbeddedBroker({"num.partitions": "many"})
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        broker.start()
    assert broker._thread is None
    assert broker._temporary is None
