"""Malicious clients do not affect others (I27). `python -m tests.integration.hostile` is the long form."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any

import pytest
from tests.integration.conftest import Figures
from tests.integration.hostile import Flood, GoodClient, allow_many_descriptors, preload
from tests.integration.process import BrokerProcess
from tests.integration.raw import RawConnection, encode_request
from tests.integration.records import consume, consumer_of, create_topic, produce

SECONDS = float(os.environ.get("HEADRACE_HOSTILE_SECONDS", "10"))
RATE = int(os.environ.get("HEADRACE_HOSTILE_RATE", "500"))
MEMORY_GROWTH_MAX = 200 * 2**20


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_a_well_behaved_client_sees_no_error_in_a_flood_of_bad_inputs(broker: BrokerProcess, figures: Figures) -> None:
    create_topic(broker.address, "target", 1)
    create_topic(broker.address, "good", 4)
    preload(broker.address, "target")
    written = len(target_values(broker.address))
    before = broker.rss_bytes()
    most = before
    with GoodClient(broker.address, "good") as client, Flood(broker.address, "target", RATE) as flood:
        for _ in range(int(SECONDS * 5)):
            threading.Event().wait(0.2)
            most = max(most, broker.rss_bytes())
    report = flood.report
    figures.add(
        f"{sum(report.sent.values())} bad inputs in {SECONDS:.0f} s; {report.refused_connections} refused; "
        f"{len(client.seconds)} good messages, p99 {client.p99_seconds * 1000:.1f} ms, worst "
        f"{max(client.seconds) * 1000:.1f} ms; memory {before >> 20} MB, at most {most >> 20} MB"
    )
    assert client.errors == []
    assert report.acknowledged == []
    assert most - before < MEMORY_GROWTH_MAX
    assert len(target_values(broker.address)) == written, "nothing malformed was appended"
    assert "Traceback" not in broker.log_text()


def target_values(address: str) -> list[bytes]:
    """Read the target topic with a client that verifies checksums."""
    from confluent_kafka import TopicPartition

    with consumer_of(address, "counts", **{"check.crcs": True}) as consumer:
        _, end = consumer.get_watermark_offsets(TopicPartition("target", 0), timeout=30)
        consumer.assign([TopicPartition("target", 0, 0)])
        return [message.value() or b"" for message in consume(consumer, end)]


def test_ten_thousand_connections_opened_and_closed_leave_nothing_behind(broker: BrokerProcess) -> None:
    target = ("127.0.0.1", broker.kafka_port)
    produce(broker.address, "before", [b"x"])
    before = broker.rss_bytes()
    for _ in range(10_000):
        connection = socket.create_connection(target, timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    produce(broker.address, "after", [b"x"])
    assert broker.rss_bytes() - before < 30 * 2**20


def test_announced_but_unsent_requests_use_no_memory(broker: BrokerProcess) -> None:
    produce(broker.address, "before", [b"x"])
    before = broker.rss_bytes()
    connections = []
    for _ in range(100):
        connection = RawConnection(broker.address)
        connection.socket.sendall((64 * 2**20).to_bytes(4, "big") + encode_request(0, 9)[:20])
        connections.append(connection)
    produce(broker.address, "after", [b"x"])
    assert broker.rss_bytes() - before < 50 * 2**20
    for connection in connections:
        connection.socket.close()


def test_a_thousand_incomplete_frames_do_not_block_others(broker: BrokerProcess) -> None:
    allow_many_descriptors()
    whole = encode_request(3, 9)
    connections = [RawConnection(broker.address) for _ in range(1000)]
    for number, connection in enumerate(connections):
        connection.socket.sendall((len(whole).to_bytes(4, "big") + whole)[: 1 + number % (len(whole) - 1)])
    produce(broker.address, "served", [b"x"])
    for connection in connections:
        connection.socket.close()


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 2**30, 104_857_601])
def test_an_invalid_length_closes_that_connection_only(broker: BrokerProcess, length: int) -> None:
    with RawConnection(broker.address) as good, RawConnection(broker.address) as bad:
        bad.socket.sendall(struct.pack(">i", length) + b"\0\x12\0\0\0\0\0\x01")
        assert bad.is_closed_by_peer()
        assert good.call(18, 0).error_code == 0


def test_a_truncated_request_closes_that_connection_only(broker: BrokerProcess) -> None:
    with RawConnection(broker.address) as good:
        for key, version in ((0, 9), (1, 12), (3, 12), (11, 7), (19, 7)):
            whole = encode_request(key, version)
            for size in (8, len(whole) // 2, len(whole) - 1):
                with RawConnection(broker.address) as bad:
                    bad.send_frame(whole[:size])
                    assert bad.is_closed_by_peer()
        assert good.call(18, 0).error_code == 0
    assert "Traceback" not in broker.log_text()


def test_a_client_that_never_reads_does_not_slow_others(broker: BrokerProcess) -> None:
    create_topic(broker.address, "target", 1)
    preload(broker.address, "target")
    before = broker.rss_bytes()
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * 2**20}
    limits: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 * 2**20,
        "session_epoch": -1,
        "rack_id": "",
    }
    topics = [{"topic": "target", "partitions": [partition]}]
    request = encode_request(1, 12, **limits, topics=topics, forgotten_topics_data=[])
    connections = [RawConnection(broker.address) for _ in range(50)]
    for connection in connections:
        for _ in range(5):
            connection.send_frame(request)
    assert len(target_values(broker.address)) > 50
    produce(broker.address, "other", [b"x"])
    assert broker.rss_bytes() - before < MEMORY_GROWTH_MAX
    for connection in connections:
        connection.socket.close()
