"""confluent-kafka (librdkafka): producing, consuming, groups."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.integration.process import PATIENCE_SECONDS, wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


def test_a_producer_and_a_group_work_on_default_settings_with_an_auto_created_topic(address: str, name: str) -> None:
    values = [b"%d" % number for number in range(1000)]
    reports = produce(address, name, list(values))
    assert len({(report.partition(), report.offset()) for report in reports}) == 1000
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        messages = consume(consumer, 1000)
    assert sorted(message.value() or b"" for message in messages) == sorted(values)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_round_trips_with_idempotence(address: str, name: str, compression: str) -> None:
    values = [b"a value that compresses well " * 20 + b"%d" % number for number in range(500)]
    config = {"compression.type": compression, "enable.idempotence": True, "linger.ms": 20}
    create_topic(address, name)
    produce(address, name, list(values), partition=2, **config)
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        messages = consume(consumer, 500)
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(500))


def test_empty_values_tombstones_null_keys_and_headers_come_back_as_sent(address: str, name: str) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("text", b"value"), ("empty", b""), ("null", None)]
    headers += [("text", b"a second of that name")]
    create_topic(address, name, 1)
    producer = Producer({"bootstrap.servers": address})
    producer.produce(name, b"", key=b"empty value")
    producer.produce(name, None, key=b"tombstone")
    producer.produce(name, b"null key", key=None)
    producer.produce(name, b"empty key", key=b"")
    producer.produce(name, b"headers", headers=headers)
    assert producer.flush(PATIENCE_SECONDS) == 0
    with consumer_of(address, name) as consumer:
        consumer.assign([TopicPartition(name, 0, 0)])
        messages = consume(consumer, 5)
    assert [(message.key(), message.value()) for message in messages] == [
        (b"empty value", b""),
        (b"tombstone", None),
        (None, b"null key"),
        (b"", b"empty key"),
        (None, b"headers"),
    ]
    assert messages[4].headers() == headers


def test_a_message_of_almost_a_megabyte_is_accepted_and_a_larger_one_is_rejected(address: str, name: str) -> None:
    create_topic(address, name, 1)
    large = bytes(range(256)) * 3900
    produce(address, name, [large])
    producer = Producer({"bootstrap.servers": address, "message.max.bytes": 4_000_000})
    errors: list[KafkaError | None] = []
    producer.produce(name, large * 2, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    with consumer_of(address, name) as consumer:
        consumer.assign([TopicPartition(name, 0, 0)])
        assert consume(consumer, 1)[0].value() == large
        assert consumer.get_watermark_offsets(TopicPartition(name, 0)) == (0, 1)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_appends(address: str, name: str, acks: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one", b"two"], acks=acks)
    with consumer_of(address, name) as consumer:
        consumer.assign([TopicPartition(name, 0, 0)])
        assert [message.value() for message in consume(consumer, 2)] == [b"one", b"two"]


def test_a_group_continues_at_its_committed_offsets(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(20)])
    with consumer_of(address, name, **{"enable.auto.commit": False}) as consumer:
        consumer.subscribe([name])
        messages = consume(consumer, 7)
        assert messages[-1].offset() == 6
        offsets = [TopicPartition(name, 0, 7, metadata="half way")]
        consumer.commit(offsets=offsets, asynchronous=False)
    with consumer_of(address, name, **{"enable.auto.commit": False}) as consumer:
        [committed] = consumer.committed([TopicPartition(name, 0)], timeout=PATIENCE_SECONDS)
        assert (committed.offset, committed.metadata) == (7, "half way")
        consumer.subscribe([name])
        assert consume(consumer, 1)[0].value() == b"7"


def test_seeking_by_offset_and_by_timestamp_finds_the_record(address: str, name: str) -> None:
    create_topic(address, name, 1)
    start_ms = int(time.time() * 1000) - 100_000
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for number in range(100):
        producer.produce(name, b"%d" % number, timestamp=start_ms + 1000 * number)
        if number % 10 == 9:
            producer.flush(PATIENCE_SECONDS)
    with consumer_of(address, name) as consumer:
        found = consumer.offsets_for_times([TopicPartition(name, 0, start_ms + 41_500)], timeout=PATIENCE_SECONDS)
        assert [partition.offset for partition in found] == [42]
        after = consumer.offsets_for_times([TopicPartition(name, 0, start_ms + 10**6)], timeout=PATIENCE_SECONDS)
        assert [partition.offset for partition in after] == [-1]
        consumer.assign([TopicPartition(name, 0, 42)])
        assert consume(consumer, 1)[0].value() == b"42"
        consumer.seek(TopicPartition(name, 0, 3))
        assert consume(consumer, 1)[0].value() == b"3"


def test_an_offset_inside_a_batch_delivers_from_there(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(100)], **{"linger.ms": 200})
    for offset in (0, 1, 50, 99):
        with consumer_of(address, name) as consumer:
            consumer.assign([TopicPartition(name, 0, offset)])
            assert consume(consumer, 1)[0].offset() == offset


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_the_remaining_one_gets_all(
    address: str, name: str, strategy: str
) -> None:
    create_topic(address, name, 4)
    config = {"partition.assignment.strategy": strategy}
    with consumer_of(address, name, **config) as stays:
        with consumer_of(address, name, **config) as leaves:
            stays.subscribe([name])
            leaves.subscribe([name])
            wait_until(lambda: _partitions(stays) == _partitions(leaves) == 2, "each member has two partitions")
        wait_until(lambda: _partitions(stays) == 4, "the one who stays has all four")


def _partitions(consumer: Consumer) -> int:
    consumer.poll(0.05)
    return len(consumer.assignment())


def test_a_static_member_rejoins_with_its_partitions_without_a_rebalance(address: str, name: str) -> None:
    create_topic(address, name, 4)
    rebalances: list[str] = []

    def watched(consumer: Consumer) -> None:
        consumer.subscribe(
            [name],
            on_assign=lambda *_: rebalances.append("assigned"),
            on_revoke=lambda *_: rebalances.append("revoked"),
        )

    with consumer_of(address, name, **{"group.instance.id": "one"}) as first:
        watched(first)
        with consumer_of(address, name, **{"group.instance.id": "two"}) as second:
            second.subscribe([name])
            wait_until(lambda: _partitions(first) == _partitions(second) == 2, "each member has two partitions")
            before = {(partition.topic, partition.partition) for partition in second.assignment()}
        rebalances.clear()
        with consumer_of(address, name, **{"group.instance.id": "two"}) as second:
            second.subscribe([name])
            wait_until(lambda: _partitions(second) == 2, "the static member is back")
            assert {(partition.topic, partition.partition) for partition in second.assignment()} == before
            _partitions(first)
            assert rebalances == []


def test_a_second_holder_of_an_instance_id_fences_the_first(address: str, name: str) -> None:
    create_topic(address, name, 1)
    fenced: list[int] = []
    config = {"group.instance.id": "only", "error_cb": lambda error: fenced.append(error.code())}
    with consumer_of(address, name, **config) as first:
        first.subscribe([name])
        wait_until(lambda: _partitions(first) == 1, "the first holder has its partition")
        with consumer_of(address, name, **{"group.instance.id": "only"}) as second:
            second.subscribe([name])

            def first_is_fenced() -> bool:
                second.poll(0.05)
                message = first.poll(0.05)
                if message is not None and (error := message.error()) is not None:
                    fenced.append(error.code())
                return bool({KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID} & set(fenced))

            wait_until(first_is_fenced, "the first holder is fenced")


def test_a_non_member_may_not_commit_for_a_group_that_has_members(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one"])
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        consume(consumer, 1)
        non_member = Consumer({"bootstrap.servers": address, "group.id": name})
        with closing(non_member), pytest.raises(KafkaException) as raised:
            non_member.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
        assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID


def test_a_regular_expression_subscription_finds_a_topic_created_later(address: str, name: str) -> None:
    with consumer_of(address, name, **{"topic.metadata.refresh.interval.ms": 200}) as consumer:
        consumer.subscribe([f"^{name}.*"])
        consumer.poll(0.1)
        create_topic(address, name + "-late", 1)
        produce(address, name + "-late", [b"found"])
        assert consume(consumer, 1)[0].value() == b"found"


def test_several_idempotent_batches_in_flight_to_a_new_topic_do_not_stall(address: str, name: str) -> None:
    config = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 10}
    reports = produce(address, name, [b"%d" % number for number in range(500)], partition=0, **config)
    assert [report.offset() for report in reports] == list(range(500))


def test_every_client_learns_the_cluster_id_and_only_one_without_api_versions_does_not(address: str) -> None:
    """The oldest Metadata response has neither a cluster id nor a controller, as librdkafka's test 0063 expects."""
    current = Producer({"bootstrap.servers": address})
    first, second = (current.list_topics(timeout=PATIENCE_SECONDS) for _ in range(2))
    assert first.cluster_id
    assert first.controller_id >= 0
    assert (second.cluster_id, second.controller_id) == (first.cluster_id, first.controller_id)
    old = Producer({"bootstrap.servers": address, "api.version.request": False, "broker.version.fallback": "0.9.0"})
    metadata = old.list_topics(timeout=PATIENCE_SECONDS)
    assert (metadata.cluster_id, metadata.controller_id) == (None, -1)
    assert [broker.id for broker in metadata.brokers.values()] == [first.controller_id]
