"""The Kafka protocol, request by request: versions, fetching, metadata. Constants are Kafka's numbers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.batches import good_batch
from tests.integration.process import outside_broker, wait_until
from tests.integration.raw import SERVED, RawConnection, encode_request, request_versions
from tests.integration.records import create_topic, produce

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 2, 3, 9, 10
API_VERSIONS, CREATE_TOPICS, OFFSET_FOR_LEADER_EPOCH = 18, 19, 23
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION = 1, 3, 17
FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 70, 71, 75, 100


@pytest.fixture
def raw(address: str) -> Iterator[RawConnection]:
    with RawConnection(address) as connection:
        yield connection


@pytest.fixture
def topic(address: str, name: str) -> str:
    create_topic(address, name, 1)
    with RawConnection(address) as raw:  # Kafka responds to CreateTopics before the leader is ready
        wait_until(lambda: only_partition(fetch(raw, name, 0)).error_code == 0, "the topic can be read")
    return name


def advertised(raw: RawConnection) -> dict[int, tuple[int, int]]:
    response = raw.call(API_VERSIONS, 3, client_software_name="test", client_software_version="1")
    assert response.error_code == 0
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def fetch(raw: RawConnection, topic: str, offset: int, version: int = 12, **fields: Any) -> Any:
    partition = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": fields.pop("partition_max_bytes", 2**20),
    }
    request = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "session_epoch": -1,
        "forgotten_topics_data": [],
    }
    return raw.call(
        FETCH, version, **(request | fields), topics=[{"topic": topic, "partitions": [partition]}], rack_id=""
    )


def only_partition(response: Any) -> Any:
    assert response.error_code == 0
    [topic] = response.responses
    [partition] = topic.partitions
    return partition


def test_the_advertised_ranges_are_those_of_kafka(raw: RawConnection) -> None:
    ranges = advertised(raw)
    assert {key: ranges.get(key) for key in SERVED} == SERVED


def test_no_version_is_advertised_that_kafka_does_not_have(raw: RawConnection) -> None:
    for key, (_, newest) in advertised(raw).items():
        assert key >= 10_000 or newest <= max(request_versions(key))


@pytest.mark.parametrize("api_key", sorted(SERVED))
def test_a_harmless_request_of_every_advertised_version_gets_a_response_in_its_format(
    address: str, api_key: int
) -> None:
    with RawConnection(address) as raw:
        oldest, newest = advertised(raw)[api_key]
    batch = {"index": 0, "records": good_batch([b"harmless"])}
    needed = {"acks": -1, "topic_data": [{"partition_data": [batch]}]} if api_key == PRODUCE else {}
    for version in request_versions(api_key):
        if oldest <= version <= newest:
            with RawConnection(address) as raw:
                raw.call(api_key, version, **needed)


def test_a_too_new_api_versions_request_gets_the_ranges_in_version_0(raw: RawConnection) -> None:
    raw.send_frame(b"\0\x12" + b"\0\x63" + b"\0\0\0\x07" + b"\xff\xff" + b"\0" + b"unknown newer fields")
    frame = raw.receive_frame()
    assert frame[:4] == b"\0\0\0\x07"
    assert frame[4:6] == b"\0\x23", "the code is UNSUPPORTED_VERSION"
    count = int.from_bytes(frame[6:10], "big")
    assert len(frame) == 10 + 6 * count
    assert any(frame[start : start + 2] == b"\0\x12" for start in range(10, len(frame), 6))


def test_a_version_above_the_advertised_one_closes_the_connection(raw: RawConnection) -> None:
    raw.send_frame(b"\0\x03" + b"\0\x63" + b"\0\0\0\x07" + b"\xff\xff" + b"\0")
    assert raw.is_closed_by_peer()


def test_an_unknown_api_key_closes_the_connection(raw: RawConnection) -> None:
    raw.send_frame(b"\x0f\xff" + b"\0\0" + b"\0\0\0\x07" + b"\xff\xff" + b"\0")
    assert raw.is_closed_by_peer()


def test_responses_have_the_order_of_the_requests_although_the_first_one_waits(
    address: str, raw: RawConnection, topic: str
) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    waiting = {
        "max_wait": 300,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "forgotten_topics_data": [],
    }
    topics = [{"topic": topic, "partitions": [partition]}]
    raw.send_frame(encode_request(FETCH, 12, 1, **waiting, topics=topics))
    raw.send_frame(encode_request(METADATA, 12, 2, topics=[]))
    assert [raw.receive_frame()[:4] for _ in range(2)] == [b"\0\0\0\x01", b"\0\0\0\x02"]


def test_a_waiting_fetch_returns_as_soon_as_a_record_is_appended(address: str, raw: RawConnection, topic: str) -> None:
    sender = threading.Timer(0.3, produce, (address, topic, [b"wakes you"]))
    sender.start()
    partition = only_partition(fetch(raw, topic, 0, max_wait=50_000))
    sender.join()
    assert b"wakes you" in partition.records
    assert partition.high_watermark == 1


def test_an_offset_out_of_range_is_rejected_at_once_although_the_fetch_could_wait(
    raw: RawConnection, address: str, topic: str
) -> None:
    produce(address, topic, [b"one"])
    for offset in (2, 1000, -5):
        assert only_partition(fetch(raw, topic, offset, max_wait=50_000)).error_code == OFFSET_OUT_OF_RANGE


def test_the_first_batch_is_delivered_although_it_is_larger_than_the_limits(
    raw: RawConnection, address: str, topic: str
) -> None:
    produce(address, topic, [b"x" * 50_000])
    partition = only_partition(fetch(raw, topic, 0, max_bytes=100, partition_max_bytes=100))
    assert len(partition.records) > 50_000


def test_a_fetch_from_inside_a_batch_returns_that_batch(raw: RawConnection, address: str, topic: str) -> None:
    produce(address, topic, [b"%d" % number for number in range(10)], **{"linger.ms": 100})
    partition = only_partition(fetch(raw, topic, 7))
    assert int.from_bytes(partition.records[:8], "big") <= 7
    assert partition.error_code == 0


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_full_fetch_names_every_partition_although_no_record_is_new(
    raw: RawConnection, address: str, topic: str, session_epoch: int
) -> None:
    produce(address, topic, [b"one"])
    partition = only_partition(fetch(raw, topic, 1, session_epoch=session_epoch, max_wait=100))
    assert (partition.error_code, partition.high_watermark, partition.records) == (0, 1, b"")


def test_a_stored_batch_differs_from_the_sent_one_in_offset_and_epoch_only(raw: RawConnection, topic: str) -> None:
    send(raw, topic, good_batch([b"first"]))
    sent = good_batch([b"second", b"third"])
    assert send(raw, topic, sent).base_offset == 1
    stored = bytes(only_partition(fetch(raw, topic, 1)).records)
    assert int.from_bytes(stored[:8], "big") == 1
    assert stored[8:12] == sent[8:12]
    assert stored[16:] == sent[16:]


def send(raw: RawConnection, topic: str, batch: bytes) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    [response] = raw.call(PRODUCE, 9, acks=-1, timeout=30_000, topic_data=data).responses
    [partition] = response.partition_responses
    assert partition.error_code == 0
    return partition


def test_a_fetch_session_returns_only_changes(raw: RawConnection, address: str, topic: str) -> None:
    opened = fetch(raw, topic, 0, session_epoch=0)
    assert opened.session_id != 0
    idle = {"max_wait": 0, "min_bytes": 1, "max_bytes": 2**20, "forgotten_topics_data": [], "rack_id": ""}
    session = {"session_id": opened.session_id, "topics": []}
    assert raw.call(FETCH, 12, **idle, **session, session_epoch=1).responses == ()
    produce(address, topic, [b"news"])
    response = raw.call(FETCH, 12, **idle, **session, session_epoch=2)
    assert b"news" in only_partition(response).records
    assert raw.call(FETCH, 12, **idle, **session, session_epoch=7).error_code == INVALID_FETCH_SESSION_EPOCH
    assert (
        raw.call(FETCH, 12, **idle, **session | {"session_id": 12345}, session_epoch=1).error_code
        == FETCH_SESSION_ID_NOT_FOUND
    )


def test_unknown_topics_partitions_and_ids_have_different_errors(raw: RawConnection, topic: str) -> None:
    assert only_partition(fetch(raw, topic + "-none", 0)).error_code == UNKNOWN_TOPIC_OR_PARTITION
    unknown = {"topic_id": uuid.UUID(int=12345), "partitions": [{"partition": 0, "partition_max_bytes": 10}]}
    limits = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "forgotten_topics_data": [],
    }
    response = raw.call(FETCH, 13, **limits, topics=[unknown], rack_id="")
    assert only_partition(response).error_code == UNKNOWN_TOPIC_ID


def test_metadata_names_topics_by_name_and_by_id(raw: RawConnection, topic: str) -> None:
    [by_name] = raw.call(METADATA, 12, topics=[{"name": topic}]).topics
    assert by_name.error_code in (0, None)
    assert by_name.topic_id
    [by_id] = raw.call(METADATA, 12, topics=[{"topic_id": by_name.topic_id, "name": None}]).topics
    assert by_id.name == topic
    [unknown] = raw.call(METADATA, 12, topics=[{"topic_id": uuid.UUID(int=12345), "name": None}]).topics
    assert unknown.error_code == UNKNOWN_TOPIC_ID
    assert topic in {one.name for one in raw.call(METADATA, 12, topics=None).topics}
    assert raw.call(METADATA, 12, topics=[]).topics == ()


def test_metadata_creates_a_topic_only_when_asked_to(raw: RawConnection, name: str) -> None:
    for _ in range(2):
        [rejected] = raw.call(METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
        assert rejected.error_code == UNKNOWN_TOPIC_OR_PARTITION
    [wrong] = raw.call(METADATA, 12, topics=[{"name": "no spaces"}], allow_auto_topic_creation=True).topics
    assert wrong.error_code == INVALID_TOPIC_EXCEPTION

    def created() -> bool:
        [response] = raw.call(METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=True).topics
        return not response.error_code and len(response.partitions) == 4

    wait_until(created, "the topic is there with four partitions")


def test_the_response_to_a_creation_has_the_topic_id_and_all_configs(raw: RawConnection, name: str) -> None:
    request = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    [created] = raw.call(CREATE_TOPICS, 7, topics=[request], timeout=30_000).topics
    assert created.error_code == 0
    assert created.topic_id
    assert created.num_partitions == 2
    assert {"retention.ms", "segment.bytes"} <= {config.name for config in created.configs}


@pytest.mark.skipif(outside_broker() is not None, reason="Kafka does not promise this")
def test_a_topic_accepts_writes_as_soon_as_its_creation_was_confirmed(raw: RawConnection, name: str) -> None:
    for number in range(20):
        topic = f"{name}-{number}"
        request = {
            "name": topic,
            "num_partitions": 3,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        raw.call(CREATE_TOPICS, 7, topics=[request], timeout=30_000)
        assert send(raw, topic, good_batch([b"at once"])).base_offset == 0
        raw.call(METADATA, 12, topics=[{"name": topic + "-auto"}], allow_auto_topic_creation=True)
        assert send(raw, topic + "-auto", good_batch([b"at once"])).base_offset == 0


def test_a_time_without_later_records_has_no_offset(raw: RawConnection, address: str, topic: str) -> None:
    produce(address, topic, [b"one"])

    def offset_at(timestamp: int) -> tuple[int, Any]:
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [partition]}]
        [response] = raw.call(LIST_OFFSETS, 7, replica_id=-1, topics=topics).topics
        [found] = response.partitions
        assert found.error_code == 0
        return found.offset, found.leader_epoch

    assert offset_at(10**14) == (-1, -1)
    assert offset_at(-2)[0] == 0
    assert offset_at(-1)[0] == 1
    assert offset_at(-3)[0] == 0


def test_epochs_that_this_leader_never_had_are_rejected(raw: RawConnection, address: str, topic: str) -> None:
    produce(address, topic, [b"one"])

    def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": topic, "partitions": [partition]}]
        [response] = raw.call(OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics).topics
        [found] = response.partitions
        return found.error_code, found.leader_epoch, found.end_offset

    [described] = raw.call(METADATA, 12, topics=[{"name": topic}]).topics
    epoch = described.partitions[0].leader_epoch
    assert end_of(epoch) == (0, epoch, 1)
    assert end_of(epoch + 5) == (0, -1, -1)
    assert end_of(epoch, current=epoch + 1)[0] == UNKNOWN_LEADER_EPOCH
    assert only_partition(fetch_with_epoch(raw, topic, epoch + 1)).error_code == UNKNOWN_LEADER_EPOCH


def fetch_with_epoch(raw: RawConnection, topic: str, epoch: int) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": 0,
        "partition_max_bytes": 1000,
    }
    limits = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "forgotten_topics_data": [],
    }
    return raw.call(FETCH, 12, **limits, topics=[{"topic": topic, "partitions": [partition]}], rack_id="")


def test_a_group_that_committed_nothing_has_no_offset(raw: RawConnection, topic: str) -> None:
    [found] = raw.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[topic]).coordinators
    assert found.error_code == 0
    group = {"group_id": topic, "topics": [{"name": topic, "partition_indexes": [0]}]}
    [response] = raw.call(OFFSET_FETCH, 8, groups=[group]).groups
    [partition] = response.topics[0].partitions
    assert (partition.committed_offset, partition.error_code) == (-1, 0)
