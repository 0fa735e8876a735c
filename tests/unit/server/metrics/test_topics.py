"""Topics, partitions and replicas, as they are told."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import batch, produce, read_all, send
from tests.unit.broker.house import House
from tests.unit.broker.test_dedup import marked, put
from tests.unit.broker.town import Town, in_town
from tests.unit.server.metrics.reading import in_house, scrape

from headrace.server.metrics import topics

TOTAL = "kafka_server_brokertopicmetrics_{}_total"


@in_house
async def test_what_happened_is_what_is_told(house: House) -> None:
    await house.make_topic("t", 2)
    await house.make_topic("quiet")
    await produce(house, "t", b"a", b"b", b"c")
    await send(house, "t", b"x" * 99)
    await read_all(house, "t")
    page = await scrape(house)
    assert page.value(TOTAL.format("messagesin"), topic="t") == 3
    assert page.value(TOTAL.format("bytesin"), topic="t") == house.partition("t").log.size_bytes
    assert page.value(TOTAL.format("bytesout"), topic="t") == house.partition("t").log.size_bytes
    assert page.value(TOTAL.format("messagesin"), topic="quiet") == 0
    assert page.value(TOTAL.format("failedproducerequests"), topic="t") == 1
    assert page.value("kafka_topic_partition_current_offset", topic="t", partition=0) == 3
    assert page.value("kafka_topic_partition_oldest_offset", topic="t", partition=1) == 0
    assert page.value("kafka_topic_partition_leader", topic="t", partition=1) == 1
    assert page.value("kafka_topic_partition_leader_is_preferred", topic="t", partition=1) == 1
    assert page.value("kafka_topic_partition_under_replicated_partition", topic="t", partition=0) == 0
    assert page.value("kafka_topic_partitions", topic="t") == 2
    assert page.value("kafka_log_log_size", topic="t", partition=0) == house.partition("t").log.size_bytes
    assert page.value("kafka_server_replicamanager_partitioncount") == 3
    assert page.value("kafka_brokers") == 1
    assert page.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert page.value("kafka_controller_kafkacontroller_offlinepartitionscount") == 0


@in_house
async def test_duplicates_that_were_left_out_are_counted(house: House) -> None:
    await house.make_topic("t", dedup_window_ms="300000")
    await put(house, marked(house, b"1:a", b"2:b", b"3:c"))
    await put(house, marked(house, b"1:a", b"4:d", b"2:b", b"3:c"))
    page = await scrape(house)
    assert page.value("headrace_dedup_dropped_total", topic="t") == 3


@in_house
async def test_many_partitions_are_told_as_their_sum(house: House) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "SERIES_MAX", 10)
        await house.make_topic("wide", 11)
        await produce(house, "wide", b"a", b"b", partition=3)
        await produce(house, "wide", b"c", partition=7)
        page = await scrape(house)
        for topic in ("kafka_topic_partition_current_offset", "kafka_topic_partition_in_sync_replica"):
            assert page.labels(topic) == [{"topic": "wide", "partition": "all"}]
        assert page.value("kafka_topic_partition_current_offset", topic="wide", partition="all") == 3
        assert page.value("kafka_topic_partition_in_sync_replica", topic="wide", partition="all") == 11
        assert page.value("kafka_topic_partitions", topic="wide") == 11
        size_bytes = sum(house.partition("wide", index).log.size_bytes for index in range(11))
        assert page.value("kafka_log_log_size", topic="wide", partition="all") == size_bytes


@in_house
async def test_many_topics_are_told_as_their_sum(house: House) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "SERIES_MAX", 3)
        for name in ("a", "b", "c", "d"):
            await house.make_topic(name, 2)
            await produce(house, name, b"1", b"2")
        page = await scrape(house)
        assert page.value(TOTAL.format("messagesin"), topic="all") == 8
        assert page.value("kafka_topic_partitions", topic="all") == 8
        assert page.value("kafka_topic_partition_current_offset", topic="all", partition="all") == 8
        assert page.labels("kafka_topic_partitions") == [{"topic": "all"}]


@in_house
async def test_a_log_that_failed_is_counted(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    house.host.disk.fail_next("sync", "*.log")
    assert (await send(house, "t", batch(b"b"))).error_code == 56
    assert (await scrape(house)).value("headrace_logs_failed") == 1


@in_town(nodes=3)
async def test_a_replica_that_is_down_is_told_by_the_leader(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3), min_insync_replicas="3")
    await produce(town[1], "t", b"a")
    await town.until_in_sync("t")
    where = {"topic": "t", "partition": "0"}
    page = await scrape(town[1])
    assert page.value("kafka_topic_partition_in_sync_replica", **where) == 3
    assert page.value("kafka_brokers") == 3
    town[3].kill()
    await town.until_in_sync("t", 1, 2)
    await town[1].pass_time(1)
    page = await scrape(town[1])
    assert page.value("kafka_topic_partition_in_sync_replica", **where) == 2
    assert page.value("kafka_topic_partition_replicas", **where) == 3
    assert page.value("kafka_topic_partition_under_replicated_partition", **where) == 1
    assert page.value("kafka_server_replicamanager_underreplicatedpartitions") == 1
    assert page.value("kafka_server_replicamanager_underminisrpartitioncount") == 1
    assert "kafka_topic_partition_in_sync_replica" not in (await scrape(town[2])).kinds
    await town.open(3)
    await town.until_in_sync("t")
    await town[1].pass_time(1)
    page = await scrape(town[1])
    assert page.value("kafka_server_replicamanager_isrshrinks_total") == 1
    assert page.value("kafka_server_replicamanager_isrexpands_total") == 1
    assert page.value("kafka_server_replicamanager_underreplicatedpartitions") == 0
