"""`headrace transaction` against a real broker and a real producer: list, describe and abort."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer
from tests.integration.process import BrokerProcess
from tests.integration.records import create_topic
from tests.integration.test_cli import Run, rows, run

__all__ = ["run"]  # the fixture


def begin(broker: BrokerProcess, transactional_id: str = "shop") -> Producer:
    """A producer with an open transaction that has written to `orders`."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": transactional_id})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=0)
    assert producer.flush(60) == 0
    return producer


def test_an_open_transaction_is_listed_described_and_aborted(broker: BrokerProcess, run: Run) -> None:
    create_topic(broker.address, "orders", 1)
    producer = begin(broker)
    (listed,) = rows(run("transaction", "list", "--state", "Ongoing"))
    assert (listed["transactional_id"], listed["state"]) == ("shop", "Ongoing")
    (described,) = rows(run("transaction", "describe", "shop"))
    assert described["partitions"] == [{"topic": "orders", "partition": 0}]
    assert rows(run("transaction", "find-hanging", "--topic", "orders", "--older-than", "0s")) == []
    run("transaction", "abort", "shop", "--yes")
    assert rows(run("transaction", "list", "--state", "Ongoing")) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    assert run("consume", "orders", "--read-committed", "--exit-at-end").stdout == ""


def test_an_unknown_transactional_id_is_reported(broker: BrokerProcess, run: Run) -> None:
    create_topic(broker.address, "orders", 1)
    assert "headrace transaction list" in run("transaction", "abort", "nobody", "--yes", expect=1).stderr
