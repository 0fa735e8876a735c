"""Reassignment plans: read Kafka's format, or spread partitions over brokers."""

from __future__ import annotations

import json

import pytest

from headrace.cli.cluster.reassign import read_plan, spread_over, target_replicas
from headrace.client.admin.cluster_admin import BrokerView, PartitionReplicas
from headrace.client.connections.address import Address
from headrace.client.metadata import TopicPartition


def test_a_plan_in_kafkas_format_is_read() -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"audit","partition":3,"replicas":[2]}]}'
    )
    assert read_plan(text.encode()) == {TopicPartition("orders", 0): [1, 2], TopicPartition("audit", 3): [2]}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (b"orders", "format of kafka-reassign-partitions"),
        (b'{"partitions": []}', "version"),
        (b'{"version": 2, "partitions": []}', "version is 2"),
        (b'{"version": 1, "partitions": [{"topic": "t"}]}', "partition"),
        (
            json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}).encode(),
            "twice",
        ),
    ],
)
def test_any_other_format_is_rejected_with_the_reason(plan: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_plan(plan)


def test_moving_partitions_count_at_their_target() -> None:
    target = TopicPartition("orders", 0)
    moving = PartitionReplicas(target, 1, 1, (3, 1, 2), (1, 2), (), (3,), (2,))
    assert target_replicas(moving) == (3, 1)
    brokers = [BrokerView(node_id, Address("host", 9092), None, is_draining=False) for node_id in (1, 3)]
    assert spread_over([moving], brokers) == {}
