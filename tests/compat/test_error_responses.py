"""Error responses on which clients and tools rely exactly; each was observed on Kafka 4.3.0."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.batches import batch, good_batch, record
from tests.integration.raw import RawConnection
from tests.integration.records import create_topic, produce

PRODUCE, LIST_OFFSETS, LEAVE_GROUP, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = (
    0,
    2,
    13,
    19,
    20,
    22,
    32,
)
INVALID_TOPIC_EXCEPTION, UNKNOWN_MEMBER, INVALID_TIMESTAMP, UNSUPPORTED_VERSION = 17, 25, 32, 35
INVALID_CONFIG, INVALID_REQUEST, INVALID_RECORD = 40, 42, 87


@pytest.fixture
def raw(address: str) -> Iterator[RawConnection]:
    with RawConnection(address) as connection:
        yield connection


def send(raw: RawConnection, topic: str, records: bytes) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return raw.call(PRODUCE, 9, acks=-1, timeout=30_000, topic_data=data).responses[0].partition_responses[0]


def test_leaving_as_an_unknown_member_is_an_error_of_that_member_only(raw: RawConnection, name: str) -> None:
    member = {"member_id": "nobody", "group_instance_id": None, "reason": None}
    response = raw.call(LEAVE_GROUP, 5, group_id=name, members=[member])
    assert response.error_code == 0
    assert [one.error_code for one in response.members] == [UNKNOWN_MEMBER]


def test_an_empty_list_of_config_names_requests_all_of_them(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1)
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": []}
    [described] = raw.call(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert "retention.ms" in {config.name for config in described.configs}


def test_unknown_config_names_are_left_out(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1)
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms", "foo"]}
    [described] = raw.call(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert [config.name for config in described.configs] == ["retention.ms"]


def test_every_bad_record_of_a_batch_is_named(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1, {"cleanup.policy": "compact"})
    produce(address, name, [b"with a key"])
    payload = record(b"no key", 0) + record(b"good", 1, key=b"key") + record(b"no key", 2)
    rejected = send(raw, name, batch(payload, 3))
    assert rejected.error_code == INVALID_RECORD
    assert [one.batch_index for one in rejected.record_errors] == [0, 2]
    assert all(one.batch_index_error_message for one in rejected.record_errors)


def test_a_record_that_is_too_old_is_named(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1, {"message.timestamp.before.max.ms": "60000"})
    produce(address, name, [b"now"])
    old = int(time.time() * 1000) - 3_600_000
    rejected = send(raw, name, batch(record(b"old"), 1, timestamp_ms=old))
    assert rejected.error_code == INVALID_TIMESTAMP
    assert [one.batch_index for one in rejected.record_errors] == [0]
    assert send(raw, name, good_batch([b"new"])).error_code == 0


def test_a_topic_named_twice_in_one_request_is_neither_created_nor_deleted(raw: RawConnection, name: str) -> None:
    request = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    twice = raw.call(CREATE_TOPICS, 7, topics=[request, request], timeout=30_000).topics
    assert [one.error_code for one in twice] == [INVALID_REQUEST]
    [created] = raw.call(CREATE_TOPICS, 7, topics=[request], timeout=30_000).topics
    assert created.error_code == 0
    twice = raw.call(DELETE_TOPICS, 5, topic_names=[name, name], timeout=30_000).responses
    assert [one.error_code for one in twice] == [INVALID_REQUEST]
    [deleted] = raw.call(DELETE_TOPICS, 5, topic_names=[name], timeout=30_000).responses
    assert deleted.error_code == 0


def test_a_topic_is_deleted_by_name_or_by_id_but_not_by_both(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1)
    both = {"name": name, "topic_id": uuid.UUID(int=12345)}
    [response] = raw.call(DELETE_TOPICS, 6, topics=[both], timeout=30_000).responses
    assert response.error_code == INVALID_REQUEST


def test_a_config_without_a_value_is_rejected(raw: RawConnection, name: str) -> None:
    config = {"name": "retention.ms", "value": None}
    request = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [config]}
    [response] = raw.call(CREATE_TOPICS, 7, topics=[request], timeout=30_000).topics
    assert response.error_code == INVALID_CONFIG


@pytest.mark.parametrize(("timestamp", "since"), [(-4, 8), (-5, 9), (-6, 11), (-7, 99)])
def test_a_special_timestamp_needs_its_version(
    raw: RawConnection, address: str, name: str, timestamp: int, since: int
) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one"])
    for version in (7, 8, 9, 10, 11):
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": name, "partitions": [partition]}]
        [response] = raw.call(LIST_OFFSETS, version, replica_id=-1, topics=topics).topics
        code = response.partitions[0].error_code
        assert (code == UNSUPPORTED_VERSION) == (version < since), version


def test_half_a_producer_identity_is_rejected(raw: RawConnection) -> None:
    for identity in ({"producer_id": 5, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 3}):
        response = raw.call(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000, **identity)
        assert response.error_code == INVALID_REQUEST


def test_internal_topics_accept_no_records_from_clients(raw: RawConnection, address: str, name: str) -> None:
    produce(address, name, [b"one"])
    commit = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [commit]}]
    raw.call(8, 8, group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=topics)
    [described] = raw.call(3, 12, topics=[{"name": "__consumer_offsets"}]).topics
    assert described.is_internal
    assert send(raw, "__consumer_offsets", good_batch([b"x"])).error_code == INVALID_TOPIC_EXCEPTION
