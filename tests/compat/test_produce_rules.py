"""Which batches a broker must reject, and how it detects duplicates (reference: the responses of Kafka 4.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.batches import batch, good_batch, malformed_batches, record, records
from tests.integration.process import outside_broker
from tests.integration.raw import RawConnection
from tests.integration.records import create_topic

PRODUCE, LIST_OFFSETS, INIT_PRODUCER_ID = 0, 2, 22
CORRUPT, INVALID_REQUIRED_ACKS, OUT_OF_ORDER, OLD_EPOCH, INVALID_RECORD = 2, 21, 45, 47, 87
UNSUPPORTED_COMPRESSION_TYPE = 76

MALFORMED = malformed_batches()


@pytest.fixture
def raw(address: str) -> Iterator[RawConnection]:
    with RawConnection(address) as connection:
        yield connection


@pytest.fixture
def topic(address: str, name: str) -> str:
    create_topic(address, name, 1)
    return name


def send(raw: RawConnection, topic: str, records_field: bytes | None, version: int = 9, acks: int = -1) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records_field}]}]
    [response] = raw.call(PRODUCE, version, acks=acks, timeout=30_000, topic_data=data).responses
    [partition] = response.partition_responses
    return partition


def end_offset(raw: RawConnection, topic: str) -> int:
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [partition]}]
    [response] = raw.call(LIST_OFFSETS, 7, replica_id=-1, topics=topics).topics
    return int(response.partitions[0].offset)


@pytest.mark.parametrize("fault", sorted(MALFORMED))
def test_a_malformed_batch_is_rejected_and_not_appended(raw: RawConnection, topic: str, fault: str) -> None:
    assert send(raw, topic, MALFORMED[fault]).error_code != 0
    assert end_offset(raw, topic) == 0
    assert send(raw, topic, good_batch([b"good"])).base_offset == 0


@pytest.mark.skipif(outside_broker() is not None, reason="Kafka sends no response")
def test_a_missing_batch_is_rejected(raw: RawConnection, topic: str) -> None:
    assert send(raw, topic, None).error_code == INVALID_RECORD


def test_a_wrong_checksum_has_its_own_error(raw: RawConnection, topic: str) -> None:
    assert send(raw, topic, MALFORMED["bad crc"]).error_code == CORRUPT


def test_unknown_acks_are_rejected(raw: RawConnection, topic: str) -> None:
    assert send(raw, topic, good_batch([b"x"]), acks=2).error_code == INVALID_REQUIRED_ACKS
    assert end_offset(raw, topic) == 0


def test_zstd_needs_a_version_that_supports_it(raw: RawConnection, topic: str) -> None:
    assert send(raw, topic, batch(b"whatever", 1, attributes=4), version=6).error_code == UNSUPPORTED_COMPRESSION_TYPE


def test_a_compacted_topic_rejects_records_without_a_key(address: str, raw: RawConnection, name: str) -> None:
    create_topic(address, name, 1, {"cleanup.policy": "compact"})
    keyless = batch(records([b"no key"]), 1)
    rejected = send(raw, name, keyless)
    assert rejected.error_code == INVALID_RECORD
    assert send(raw, name, batch(record(b"value", key=b"key"), 1)).error_code == 0


class IdempotentProducer:
    """Batches of one record with chosen sequence numbers."""

    def __init__(self, raw: RawConnection, topic: str) -> None:
        response = raw.call(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000)
        assert response.error_code == 0
        self.producer_id, self.raw, self.topic = int(response.producer_id), raw, topic
        self._values = itertools.count()

    def send(self, sequence: int, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        """Send one batch; return the error code and base offset of the response."""
        values = [b"%d" % next(self._values) for _ in range(count)]
        response = send(self.raw, self.topic, good_batch(values, (self.producer_id, epoch, sequence)))
        return int(response.error_code), int(response.base_offset)


@pytest.fixture
def producer(raw: RawConnection, topic: str) -> IdempotentProducer:
    return IdempotentProducer(raw, topic)


def test_producer_ids_are_never_allocated_twice(raw: RawConnection, topic: str) -> None:
    ids = [IdempotentProducer(raw, topic).producer_id for _ in range(20)]
    assert len(set(ids)) == 20


def test_a_duplicate_returns_its_first_offset_and_is_appended_once(
    producer: IdempotentProducer,
) -> None:
    for sequence in range(6):
        assert producer.send(sequence) == (0, sequence)
    for sequence in range(1, 6):
        assert producer.send(sequence) == (0, sequence), "one of the last five is known"
    assert end_offset(producer.raw, producer.topic) == 6


def test_a_gap_in_the_sequence_is_rejected(producer: IdempotentProducer) -> None:
    assert producer.send(0) == (0, 0)
    assert producer.send(2)[0] == OUT_OF_ORDER
    assert producer.send(1) == (0, 1)


def test_a_batch_that_overlaps_a_known_one_without_being_equal_is_rejected(producer: IdempotentProducer) -> None:
    assert producer.send(0, count=3) == (0, 0)
    assert producer.send(0, count=2)[0] == OUT_OF_ORDER
    assert producer.send(1, count=3)[0] == OUT_OF_ORDER


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(producer: IdempotentProducer) -> None:
    assert producer.send(0) == (0, 0)
    assert producer.send(1, epoch=1)[0] == OUT_OF_ORDER
    assert producer.send(0, epoch=1) == (0, 1)
    assert producer.send(1, epoch=0)[0] == OLD_EPOCH


def test_an_unknown_producer_may_begin_with_any_sequence(producer: IdempotentProducer) -> None:
    assert producer.send(4711) == (0, 0)
    assert producer.send(4712) == (0, 1)


def test_the_sequence_wraps_around(producer: IdempotentProducer) -> None:
    assert producer.send(2**31 - 1) == (0, 0)
    assert producer.send(0) == (0, 1)
    assert producer.send(2**31 - 1) == (0, 0), "still known as a duplicate"
    assert producer.send(1) == (0, 2)
