"""Dead letters are stored once, with origin and reason, on the leader of their topic."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import fetch_request, fetched_partitions, send
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import HeadraceError, NotLeader, OffsetNotAvailable, UnknownTopicOrPartition
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEDUP_ID,
    REDRIVEN,
    DeadLetterOrigin,
    dead_letter_origin,
    header_value,
)
from headrace.registry.topics import TopicRecords
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records
from headrace.wire.batches.compression import NONE, ZSTD
from headrace.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState


async def dead_letter(
    simulated_broker: SimulatedBroker, offset: int = 0, *, index: int = 0, topic: str = "t", attempts: int = 5
) -> None:
    writing = simulated_broker.broker.dead_letters.dead_letter(topic, index, offset, "workers", attempts, "boom")
    await simulated_broker.host.start(writing, "dead letter")


async def dead(simulated_broker: SimulatedBroker, topic: str = "t.dlq") -> list[BatchRecord]:
    response = await simulated_broker.send(fetch_request({(topic, 0): 0}), 11)
    data = fetched_partitions(response)[topic, 0]
    assert data.error_code == 0
    view = memoryview(data.records or b"")
    found: list[BatchRecord] = []
    while view:
        header = parse_header(view)
        found += read_records(view[: header.size_bytes], header, 1 << 24)
        view = view[header.size_bytes :]
    return found


async def put(simulated_broker: SimulatedBroker, *records: BatchRecord, compression: int = NONE) -> None:
    response = await send(simulated_broker, "t", build_batch(records, compression=compression))
    assert response.error_code == 0


@pytest.mark.parametrize("compression", [NONE, ZSTD])
async def test_a_dead_letter_has_the_message_and_the_reason(
    simulated_broker: SimulatedBroker, compression: int
) -> None:
    await simulated_broker.create_topic("t", 1)
    await put(
        simulated_broker,
        BatchRecord(b"j", b"other"),
        BatchRecord(b"k", b"value", [("type", b"order")]),
        compression=compression,
    )
    await dead_letter(simulated_broker, 1)
    (letter,) = await dead(simulated_broker)
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"value", ("type", b"order"))
    now_ms = simulated_broker.host.clock.now_ms()
    death = dead_letter_origin(letter.headers)
    assert death is not None
    assert death == DeadLetterOrigin(
        "boom", 5, "workers", "t", 0, 1, death.at_ms, simulated_broker.broker.catalogue.topic("t").id
    )
    assert 0 <= now_ms - death.at_ms < 1000


async def test_the_first_dead_letter_creates_the_topic_which_keeps_dead_letters(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 3, max_message_bytes="5000")
    await put(simulated_broker, BatchRecord(value=b"a"))
    await dead_letter(simulated_broker)
    made = simulated_broker.broker.catalogue.topic("t.dlq")
    assert made.partition_count == 1
    assert (made.config.retention_ms, made.config.retention_mode) == (-1, "acked")
    assert made.config.dedup_window_ms > 0
    assert made.config.max_message_bytes > 5000


async def test_the_topic_is_deleted_with_its_source(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"))
    await dead_letter(simulated_broker)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t"), DeleteTopicState(name="t.dlq")])
    response = await simulated_broker.send(request, 6)
    assert [(one.name, one.error_code) for one in response.responses] == [("t", 0), ("t.dlq", 0)]
    assert simulated_broker.broker.catalogue.find("t.dlq") is None
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"b"))
    await dead_letter(simulated_broker)
    assert [letter.value for letter in await dead(simulated_broker)] == [b"b"]


async def test_a_dead_letter_topic_created_by_a_client_is_kept_for_a_later_source(
    simulated_broker: SimulatedBroker,
) -> None:
    """The two dead letters have the same subscription, topic name, partition, offset and attempts."""
    await simulated_broker.create_topic("t.dlq", dedup_window_ms="600000")
    for value in (b"a", b"b"):
        await simulated_broker.create_topic("t")
        await put(simulated_broker, BatchRecord(value=value))
        await dead_letter(simulated_broker)
        await simulated_broker.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)
    assert [letter.value for letter in await dead(simulated_broker)] == [b"a", b"b"]


async def test_no_dead_letter_topic_is_created_for_a_deleted_topic(
    simulated_broker: SimulatedBroker,
) -> None:
    """The leader of the topic does not know about the deletion yet."""
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"))
    await TopicRecords(simulated_broker.registry).delete("t", simulated_broker.broker.catalogue.topic("t").id, 0)
    with pytest.raises(HeadraceError, match="was deleted"):
        await dead_letter(simulated_broker)
    assert await simulated_broker.registry.get("/topics/t.dlq") is None


async def test_a_dead_letter_that_is_written_twice_is_stored_once(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"), BatchRecord(value=b"b"))
    await dead_letter(simulated_broker, 0)
    await dead_letter(simulated_broker, 0)
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    await dead_letter(simulated_broker, 0)
    await dead_letter(simulated_broker, 1)
    assert [letter.value for letter in await dead(simulated_broker)] == [b"a", b"b"]


async def test_a_message_that_fails_twice_becomes_two_dead_letters(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"))
    await dead_letter(simulated_broker, attempts=5)
    await dead_letter(simulated_broker, attempts=6)
    assert len(await dead(simulated_broker)) == 2


async def test_the_dedup_id_of_the_message_is_kept(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(None, b"a", [(DEDUP_ID, b"\xffmine"), (REDRIVEN, b"2")]))
    await dead_letter(simulated_broker)
    (letter,) = await dead(simulated_broker)
    assert (
        header_value(letter.headers, DEDUP_ID)
        == f"workers/{simulated_broker.broker.catalogue.topic('t').id}/0/0/5".encode()
    )
    assert header_value(letter.headers, DEAD_DEDUP_ID) == b"\xffmine"
    assert header_value(letter.headers, REDRIVEN) == b"2"


async def test_a_deleted_message_becomes_no_dead_letter(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"), BatchRecord(value=b"b"))
    await simulated_broker.host.start(simulated_broker.partition("t").log.advance_start(1), "advance")
    await dead_letter(simulated_broker, 0)
    assert simulated_broker.broker.catalogue.find("t.dlq") is None


@in_simulated_cluster(2)
async def test_a_message_above_the_high_watermark_is_retried_and_not_treated_as_deleted(
    simulated_cluster: SimulatedCluster,
) -> None:
    """After a restart of all brokers, the leader learns the high watermark only from its follower."""
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="2")
    await simulated_cluster.wait_until_in_sync("t")
    await put(simulated_cluster[1], BatchRecord(value=b"a"))
    for broker in list(simulated_cluster.up):
        broker.kill()
    await simulated_cluster.open(1)
    await simulated_cluster.wait_for_leader("t", 1)
    assert simulated_cluster.replica(1, "t").high_watermark == 0
    with pytest.raises(OffsetNotAvailable):
        await dead_letter(simulated_cluster[1], 0)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").high_watermark == 1)
    await dead_letter(simulated_cluster[1], 0)
    assert [letter.value for letter in await dead(await simulated_cluster.wait_for_leader("t.dlq"))] == [b"a"]


async def test_a_failed_dead_letter_is_dropped(
    simulated_broker: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await simulated_broker.create_topic("t.dlq")
    response = await send(simulated_broker, "t.dlq", build_batch([BatchRecord(value=b"a")]))
    assert response.error_code == 0
    await dead_letter(simulated_broker, topic="t.dlq")
    assert simulated_broker.broker.catalogue.find("t.dlq.dlq") is None
    assert "subscription=workers dead_letter=t.dlq:0:0 attempts=5 reason=boom" in caplog.text


async def test_a_failed_write_of_a_dead_letter_raises(simulated_broker: SimulatedBroker) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await dead_letter(simulated_broker)
    await simulated_broker.create_topic("t")
    await put(simulated_broker, BatchRecord(value=b"a"))
    await simulated_broker.create_topic("t.dlq", max_message_bytes="10")
    with pytest.raises(HeadraceError, match=r"max\.message\.bytes of the topic is 10"):
        await dead_letter(simulated_broker)


async def test_a_message_of_the_maximum_size_fits_as_a_dead_letter(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", max_message_bytes="100000")
    await put(simulated_broker, BatchRecord(value=b"x" * 99_900))
    await dead_letter(simulated_broker)
    assert len(await dead(simulated_broker)) == 1


@in_simulated_cluster()
async def test_a_dead_letter_is_produced_to_the_leader_of_its_topic(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1,))
    await simulated_cluster.create_topic("t.dlq", (2, 3), dedup_window_ms="60000")
    await put(simulated_cluster[1], BatchRecord(value=b"a"))
    await dead_letter(simulated_cluster[1])
    await dead_letter(simulated_cluster[1])
    assert [letter.value for letter in await dead(simulated_cluster[2])] == [b"a"]
    await simulated_cluster.wait_until_in_sync("t.dlq")
    await simulated_cluster.move_leadership("t.dlq", 3)
    await simulated_cluster.wait_until(
        lambda: all(led.is_loaded for led in simulated_cluster[3].broker.dedup._shards.values())
    )
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[1].broker.catalogue.partition_record("t.dlq", 0).leader == 3
    )
    await dead_letter(simulated_cluster[1])
    assert [letter.value for letter in await dead(simulated_cluster[3])] == [b"a"]


@in_simulated_cluster()
async def test_the_dead_letter_topic_has_as_many_replicas_as_its_source(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="2")
    await simulated_cluster.wait_until_in_sync("t")
    await put(simulated_cluster[1], BatchRecord(value=b"a"))
    await dead_letter(simulated_cluster[1])
    assert len(simulated_cluster.record("t.dlq").replicas) == 2
    assert simulated_cluster[1].broker.catalogue.topic("t.dlq").config.min_insync_replicas == 2


@in_simulated_cluster(2)
async def test_without_a_leader_of_the_dead_letter_topic_the_write_fails(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1,))
    await simulated_cluster.create_topic("t.dlq", (2,))
    await put(simulated_cluster[1], BatchRecord(value=b"a"))
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster[1].broker.catalogue.leader_node("t.dlq", 0) is None)
    with pytest.raises(NotLeader, match=r"partition t\.dlq-0 has no leader"):
        await dead_letter(simulated_cluster[1])
