"""Clients that reconnect while a broker starts: the first response they get is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.process import BrokerProcess
from tests.integration.raw import connect_in_a_tight_loop, encode_request

METADATA = 3
STARTS = 30
STALLED_SECONDS = 10.0
"""After a Metadata response without brokers, librdkafka's admin client waits for 20 s and more."""


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.terminate], ids=["kill", "terminate"])
def test_a_client_that_connects_during_the_start_gets_complete_metadata_and_creates_a_topic(
    tmp_path: Path, end: Callable[[BrokerProcess], object]
) -> None:
    encode_request(METADATA, 12, topics=None)  # loads the schema, which takes longer than the start of a broker
    broker = BrokerProcess(tmp_path)
    try:
        for start in range(STARTS // 2):
            broker.launch()
            with connect_in_a_tight_loop(broker.address) as connection:
                admin = AdminClient({"bootstrap.servers": broker.address})
                metadata = connection.call(METADATA, 12, topics=None)
                created = admin.create_topics([NewTopic(f"start-{start}", 1, 1)])
            assert [(one.node_id, one.port) for one in metadata.brokers] == [(1, broker.kafka_port)]
            assert metadata.controller_id == 1
            created[f"start-{start}"].result(STALLED_SECONDS)
            end(broker)
    finally:
        broker.stop()
