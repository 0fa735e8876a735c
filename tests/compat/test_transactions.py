"""Transactions of confluent-kafka, aiokafka and kafka-python: which readers see which records, and when.

Start a real Kafka (HEADRACE_TEST_BROKER) with `transaction.abort.timed.out.transaction.cleanup.interval.ms=200` and
`group.min.session.timeout.ms=1000`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition
from kafka.admin import AbortTransactionSpec
from kafka.errors import InvalidTxnStateError
from tests.compat.transactional import COMMITTED, UNCOMMITTED, VIEWS, View, is_fenced, writer_of
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, outside_broker, wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce

CLIENTS = ["confluent", "aiokafka", "kafka-python"]
every_writer = pytest.mark.parametrize("client", CLIENTS)
every_reader = pytest.mark.parametrize("reader", CLIENTS)

Seen = TypeVar("Seen")


def expect(look: Callable[[], Seen], expected: Seen) -> None:
    """Wait for the expected records. Headrace confirms the end of a transaction after its markers are written, Kafka a
    little earlier."""
    seen: list[Seen] = []

    def as_expected() -> bool:
        seen.append(look())
        return seen[-1] == expected

    if outside_broker() is not None:
        wait_until(as_expected, f"{expected} is seen")
    else:
        assert as_expected(), f"{seen[-1]} instead of {expected}"


def seen_by(reader: str, address: str, topic: str, isolation: str, partitions: int = 1) -> list[bytes]:
    return VIEWS[reader](address, topic, partitions, isolation).values


def committed_offset(address: str, group: str, topic: str) -> int:
    with consumer_of(address, group, **{"isolation.level": UNCOMMITTED}) as consumer:
        [place] = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    return int(place.offset)


@every_writer
def test_readers_see_committed_records_and_aborted_ones_only_if_read_uncommitted(
    address: str, name: str, client: str
) -> None:
    create_topic(address, name, 1)
    with writer_of(client, address, name) as writer:
        for values, end in [
            ([b"one", b"two"], writer.commit),
            ([b"never", b"ever"], writer.abort),
            ([b"three"], writer.commit),
        ]:
            writer.begin()
            for value in values:
                writer.send(name, 0, value)
            end()
    for reader in CLIENTS:
        expect(partial(seen_by, reader, address, name, COMMITTED), [b"one", b"two", b"three"])
        assert seen_by(reader, address, name, UNCOMMITTED) == [b"one", b"two", b"never", b"ever", b"three"]


@every_writer
def test_a_transaction_without_records_ends_either_way_and_the_next_one_works(
    address: str, name: str, client: str
) -> None:
    create_topic(address, name, 1)
    with writer_of(client, address, name) as writer:
        writer.begin()
        writer.commit()
        writer.begin()
        writer.abort()
        writer.begin()
        writer.send(name, 0, b"one")
        writer.commit()
    expect(partial(seen_by, client, address, name, COMMITTED), [b"one"])


@every_writer
@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_transaction_over_several_topics_is_visible_whole_or_not_at_all(
    address: str, name: str, client: str, outcome: str
) -> None:
    topics = [f"{name}-{letter}" for letter in "ab"]
    for topic in topics:
        create_topic(address, topic, 3)
    with writer_of(client, address, name) as writer:
        writer.begin()
        for topic in topics:
            for partition in range(3):
                writer.send(topic, partition, b"%d" % partition)
        for topic in topics:
            assert VIEWS[client](address, topic, 3, COMMITTED) == View([0, 0, 0], [])
        getattr(writer, outcome)()
    expected = View([2, 2, 2], [b"0", b"1", b"2"] if outcome == "commit" else [])
    for topic in topics:
        expect(partial(VIEWS[client], address, topic, 3, COMMITTED), expected)


@every_writer
def test_offsets_count_only_when_their_transaction_is_committed(address: str, name: str, client: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(10)])
    with writer_of(client, address, name) as writer:
        writer.begin()
        writer.send_offset(name, name, 0, 3)
        assert committed_offset(address, name, name) == -1001
        writer.abort()
        expect(partial(committed_offset, address, name, name), -1001)
        writer.begin()
        writer.send(name, 0, b"ten")
        writer.send_offset(name, name, 0, 7)
        writer.commit()
        expect(partial(committed_offset, address, name, name), 7)
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        assert consume(consumer, 1)[0].value() == b"7"


def test_offsets_of_a_member_that_left_are_rejected_and_the_transaction_is_aborted(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"one"])
    with consumer_of(address, name) as consumer:
        consumer.subscribe([name])
        consume(consumer, 1)
        of_the_past = consumer.consumer_group_metadata()
    producer = Producer({"bootstrap.servers": address, "transactional.id": name})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(name, b"never")
    with pytest.raises(KafkaException) as raised:
        producer.send_offsets_to_transaction([TopicPartition(name, 0, 1)], of_the_past)
    assert raised.value.args[0].code() in {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID}
    assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction(PATIENCE_SECONDS)
    assert committed_offset(address, name, name) in {-1001, 1}, "1 is what the member committed when it left"
    expect(partial(seen_by, "confluent", address, name, COMMITTED), [b"one"])


@every_writer
def test_a_second_producer_of_the_id_aborts_the_open_transaction_and_fences_the_first(
    address: str, name: str, client: str
) -> None:
    create_topic(address, name, 1)
    with writer_of(client, address, name) as first:
        first.begin()
        first.send(name, 0, b"of the first")
        with writer_of(client, address, name) as second:
            second.begin()
            second.send(name, 0, b"of the second")
            with pytest.raises(Exception, match=r".*") as raised:
                first.commit()
            assert is_fenced(raised.value), raised.value
            second.commit()
    expect(partial(seen_by, client, address, name, COMMITTED), [b"of the second"])


@every_writer
def test_a_writer_that_dies_in_its_transaction_finds_it_aborted_after_its_restart(
    address: str, name: str, client: str, tmp_path: Path
) -> None:
    create_topic(address, name, 1)
    output = tmp_path / "writer.txt"
    with output.open("wb") as stdout, output.with_suffix(".log").open("wb") as stderr:
        command = [sys.executable, "-m", "tests.compat.transactional", client, address, name, name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
    with process:
        wait_until(lambda: output.read_text() == "left open\n", "the writer has an open transaction")
        process.kill()
    assert VIEWS[client](address, name, 1, COMMITTED) == View([0], [])
    with writer_of(client, address, name) as writer:
        expect(partial(VIEWS[client], address, name, 1, COMMITTED), View([2], []))
        writer.begin()
        writer.send(name, 0, b"back")
        writer.commit()
    expect(partial(seen_by, client, address, name, COMMITTED), [b"back"])


@every_reader
@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_read_committed_reader_never_passes_an_open_transaction(
    address: str, name: str, reader: str, outcome: str
) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"before"])
    with writer_of("confluent", address, name) as writer:
        writer.begin()
        writer.send(name, 0, b"inside")
        produce(address, name, [b"behind"])
        assert VIEWS[reader](address, name, 1, COMMITTED) == View([1], [b"before"])
        assert VIEWS[reader](address, name, 1, UNCOMMITTED) == View([3], [b"before", b"inside", b"behind"])
        getattr(writer, outcome)()
    inside = [b"inside"] if outcome == "commit" else []
    expect(partial(VIEWS[reader], address, name, 1, COMMITTED), View([4], [b"before", *inside, b"behind"]))


@pytest.mark.skipif(outside_broker() is not None, reason="Kafka responds before the markers are written")
@every_writer
def test_a_reader_that_starts_right_after_a_commit_sees_all_of_it(address: str, name: str, client: str) -> None:
    create_topic(address, name, 4)
    values: list[list[bytes]] = [[] for _ in range(4)]
    with writer_of(client, address, name) as writer, writer_of(client, address, f"{name}-other") as other:
        for number in range(10):
            for one, text in [(writer, b"%d"), (other, b"other %d")]:
                one.begin()
                for partition in range(4):
                    one.send(name, partition, text % number)
                    values[partition].append(text % number)
                one.commit()
            seen = VIEWS["confluent"](address, name, 4, COMMITTED).values
            assert seen == [value for those in values for value in those]


@pytest.fixture(scope="module")
def broker_with_frequent_timeout_checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that checks for expired transactions more often than by default."""
    outside = outside_broker()
    if outside is not None:
        yield outside
        return
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    broker = BrokerProcess(tmp_path_factory.mktemp("broker_with_frequent_timeout_checks"), settings).start()
    yield broker.address
    broker.stop()


@every_writer
def test_an_expired_transaction_is_aborted_and_its_producer_may_not_commit_it(
    broker_with_frequent_timeout_checks: str, name: str, client: str
) -> None:
    create_topic(broker_with_frequent_timeout_checks, name, 1)
    with writer_of(client, broker_with_frequent_timeout_checks, name, timeout_ms=2000) as writer:
        writer.begin()
        writer.send(name, 0, b"late")
        produce(broker_with_frequent_timeout_checks, name, [b"behind"])
        wait_until(
            lambda: seen_by(client, broker_with_frequent_timeout_checks, name, COMMITTED) == [b"behind"],
            "the transaction is aborted",
        )
        with pytest.raises(Exception, match=r".*"):
            writer.commit()
    with writer_of(client, broker_with_frequent_timeout_checks, name) as writer:
        writer.begin()
        writer.send(name, 0, b"again")
        writer.commit()
    expect(partial(seen_by, client, broker_with_frequent_timeout_checks, name, COMMITTED), [b"behind", b"again"])


def test_an_administrator_sees_an_open_transaction_and_may_not_end_it_in_one_partition_only(
    address: str, name: str
) -> None:
    create_topic(address, name, 1)
    place = PythonPartition(name, 0)
    with writer_of("confluent", address, name) as writer, closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        writer.begin()
        writer.send(name, 0, b"one")
        listings = [one for of_a_broker in admin.list_transactions().values() for one in of_a_broker]
        [listed] = [one for one in listings if one.transactional_id == name]
        described = admin.describe_transactions([name])[name]
        assert listed.state == described.state == "Ongoing"
        assert described.topic_partitions == {place}
        [producer] = admin.describe_producers([place])[place].active_producers
        assert producer.current_transaction_start_offset == 0
        assert producer.producer_id == described.producer_id == listed.producer_id
        if (
            outside_broker() is None
        ):  # Kafka writes the marker, and the coordinator's commit writes another one after it
            spec = AbortTransactionSpec(place, producer.producer_id, producer.producer_epoch)
            with pytest.raises(InvalidTxnStateError):
                admin.abort_transaction(spec)
        writer.commit()
        expect(partial(seen_by, "confluent", address, name, COMMITTED), [b"one"])
        assert admin.describe_transactions([name])[name].state == "CompleteCommit"
