"""The bytes of Headrace's own requests, and of its tagged field in DescribeCluster."""

from __future__ import annotations

import pytest
from tests.unit.wire.codec.oracle import kio_class, kio_message

from headrace.wire.apis import APIS, DESCRIBE_CLUSTER, DRAIN_BROKER
from headrace.wire.codec.codec import decode, encode
from headrace.wire.messages.metadata import DescribeClusterBroker, DescribeClusterResponse
from headrace.wire.messages.queues import (
    LeasedRange,
    LeasePartitionResponse,
    LeaseRequest,
    LeaseResponse,
    LeaseTopic,
    LeaseTopicResponse,
    SettleItem,
    SettlePartition,
    SettleRequest,
    SettleTopic,
)
from headrace.wire.messages.replicas import DrainBrokerRequest, DrainBrokerResponse


def encoded(message: object, version: int) -> bytes:
    return b"".join(bytes(chunk) for chunk in encode(message, version))  # type: ignore[call-overload]


def test_the_bytes_of_drain_broker() -> None:
    request = DrainBrokerRequest(broker_id=3, is_drained=False)
    assert encoded(request, 0) == b"\0\0\0\x03\0\0"
    assert decode(DrainBrokerRequest, 0, memoryview(encoded(request, 0))) == request
    reducing = DrainBrokerRequest(broker_id=3, reduces_replicas=True)
    assert encoded(reducing, 0) == b"\0\0\0\x03\x01" + b"\x01\0\x01\x01", "one tag, 0, of one byte"
    assert decode(DrainBrokerRequest, 0, memoryview(encoded(reducing, 0))) == reducing
    response = DrainBrokerResponse(error_code=42, error_message="no")
    assert encoded(response, 0) == b"\0\0\0\0\0\x2a\x03no\0"
    assert decode(DrainBrokerResponse, 0, memoryview(encoded(response, 0))) == response
    assert APIS[DRAIN_BROKER].request_header_version(0) == 2


@pytest.mark.parametrize("version", range(3))
def test_is_draining_is_a_tag_that_is_sent_only_if_true(version: int) -> None:
    broker = DescribeClusterBroker(2, "b", 9092, is_draining=True)
    data = encoded(DescribeClusterResponse(cluster_id="c", brokers=[broker]), version)
    assert b"\x01" + b"\x90\x4e" + b"\x01\x01" in data, "one tag, 10000, of one byte"
    assert decode(DescribeClusterResponse, version, memoryview(data)).brokers == [broker]
    broker.is_draining = False
    data = encoded(DescribeClusterResponse(cluster_id="c", brokers=[broker]), version)
    theirs = kio_message(kio_class(APIS[DESCRIBE_CLUSTER], "response", version), data)
    assert [broker.broker_id for broker in theirs.brokers] == [2]


def test_the_bytes_of_lease() -> None:
    request = LeaseRequest("s", "m", 500, 10, 1000, topics=[LeaseTopic("t", [0, 1])])
    fields = b"\x02s" + b"\x02m" + b"\0\0\x01\xf4" + b"\0\0\0\x0a" + b"\0\0\x03\xe8" + b"\xff\xff\xff\xff"
    topics = b"\x02" + b"\x02t" + b"\x03" + b"\0\0\0\0" + b"\0\0\0\x01" + b"\0"
    assert encoded(request, 0) == fields + topics + b"\0"
    answer = LeasePartitionResponse(1, lease_epoch=4, leased_until_ms=5, leased=[LeasedRange(6, 7, 1)], records=b"xyz")
    response = LeaseResponse(topics=[LeaseTopicResponse("t", [answer])])
    decoded = decode(LeaseResponse, 0, memoryview(encoded(response, 0)))
    assert decoded.topics[0].partitions[0].leased == [LeasedRange(6, 7, 1)]
    assert bytes(decoded.topics[0].partitions[0].records or b"") == b"xyz"  # type: ignore[call-overload]


def test_the_bytes_of_settle() -> None:
    items = [SettleItem(6, 7, 1)]
    request = SettleRequest("s", "m", [SettleTopic("t", [SettlePartition(1, 4, items)])])
    item = (
        b"\0" * 7 + b"\x06" + b"\0" * 7 + b"\x07" + b"\0\0\0\x01" + b"\x01" + b"\xff" * 8 + b"\xff" * 4 + b"\0" + b"\0"
    )
    partition = b"\0\0\0\x01" + b"\0\0\0\x04" + b"\x02" + item + b"\0"
    assert encoded(request, 0) == b"\x02s\x02m\x02\x02t\x02" + partition + b"\0\0"
