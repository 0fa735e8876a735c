"""Metrics of topics, partitions and replicas."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import batch, produce, read_all, send
from tests.unit.broker.produce.test_dedup_windows import marked, put
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster
from tests.unit.server.metrics.metrics_page import scrape, with_simulated_broker

from headrace.server.metrics import topics

TOTAL = "kafka_server_brokertopicmetrics_{}_total"


@with_simulated_broker
async def test_topic_counters_match_the_requests(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await simulated_broker.create_topic("quiet")
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    await send(simulated_broker, "t", b"x" * 99)
    await read_all(simulated_broker, "t")
    page = await scrape(simulated_broker)
    assert page.value(TOTAL.format("messagesin"), topic="t") == 3
    assert page.value(TOTAL.format("bytesin"), topic="t") == simulated_broker.partition("t").log.size_bytes
    assert page.value(TOTAL.format("bytesout"), topic="t") == simulated_broker.partition("t").log.size_bytes
    assert page.value(TOTAL.format("messagesin"), topic="quiet") == 0
    assert page.value(TOTAL.format("failedproducerequests"), topic="t") == 1
    assert page.value("kafka_topic_partition_current_offset", topic="t", partition=0) == 3
    assert page.value("kafka_topic_partition_oldest_offset", topic="t", partition=1) == 0
    assert page.value("kafka_topic_partition_leader", topic="t", partition=1) == 1
    assert page.value("kafka_topic_partition_leader_is_preferred", topic="t", partition=1) == 1
    assert page.value("kafka_topic_partition_under_replicated_partition", topic="t", partition=0) == 0
    assert page.value("kafka_topic_partitions", topic="t") == 2
    assert page.value("kafka_log_log_size", topic="t", partition=0) == simulated_broker.partition("t").log.size_bytes
    assert page.value("kafka_server_replicamanager_partitioncount") == 3
    assert page.value("kafka_brokers") == 1
    assert page.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert page.value("kafka_controller_kafkacontroller_offlinepartitionscount") == 0


@with_simulated_broker
async def test_dropped_duplicates_are_counted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="300000")
    await put(simulated_broker, marked(simulated_broker, b"1:a", b"2:b", b"3:c"))
    await put(simulated_broker, marked(simulated_broker, b"1:a", b"4:d", b"2:b", b"3:c"))
    page = await scrape(simulated_broker)
    assert page.value("headrace_dedup_dropped_total", topic="t") == 3


@with_simulated_broker
async def test_many_partitions_are_summed(simulated_broker: SimulatedBroker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "SERIES_MAX", 10)
        await simulated_broker.create_topic("wide", 11)
        await produce(simulated_broker, "wide", b"a", b"b", partition=3)
        await produce(simulated_broker, "wide", b"c", partition=7)
        page = await scrape(simulated_broker)
        for topic in ("kafka_topic_partition_current_offset", "kafka_topic_partition_in_sync_replica"):
            assert page.labels(topic) == [{"topic": "wide", "partition": "all"}]
        assert page.value("kafka_topic_partition_current_offset", topic="wide", partition="all") == 3
        assert page.value("kafka_topic_partition_in_sync_replica", topic="wide", partition="all") == 11
        assert page.value("kafka_topic_partitions", topic="wide") == 11
        size_bytes = sum(simulated_broker.partition("wide", index).log.size_bytes for index in range(11))
        assert page.value("kafka_log_log_size", topic="wide", partition="all") == size_bytes


@with_simulated_broker
async def test_many_topics_are_summed(simulated_broker: SimulatedBroker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "SERIES_MAX", 3)
        for name in ("a", "b", "c", "d"):
            await simulated_broker.create_topic(name, 2)
            await produce(simulated_broker, name, b"1", b"2")
        page = await scrape(simulated_broker)
        assert page.value(TOTAL.format("messagesin"), topic="all") == 8
        assert page.value("kafka_topic_partitions", topic="all") == 8
        assert page.value("kafka_topic_partition_current_offset", topic="all", partition="all") == 8
        assert page.labels("kafka_topic_partitions") == [{"topic": "all"}]


@with_simulated_broker
async def test_a_failed_log_is_counted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    simulated_broker.host.disk.fail_next("sync", "*.log")
    assert (await send(simulated_broker, "t", batch(b"b"))).error_code == 56
    assert (await scrape(simulated_broker)).value("headrace_logs_failed") == 1


@in_simulated_cluster(nodes=3)
async def test_the_leader_reports_an_out_of_sync_replica(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3), min_insync_replicas="3")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_in_sync("t")
    where = {"topic": "t", "partition": "0"}
    page = await scrape(simulated_cluster[1])
    assert page.value("kafka_topic_partition_in_sync_replica", **where) == 3
    assert page.value("kafka_brokers") == 3
    simulated_cluster[3].kill()
    await simulated_cluster.wait_until_in_sync("t", 1, 2)
    await simulated_cluster[1].pass_time(1)
    page = await scrape(simulated_cluster[1])
    assert page.value("kafka_topic_partition_in_sync_replica", **where) == 2
    assert page.value("kafka_topic_partition_replicas", **where) == 3
    assert page.value("kafka_topic_partition_under_replicated_partition", **where) == 1
    assert page.value("kafka_server_replicamanager_underreplicatedpartitions") == 1
    assert page.value("kafka_server_replicamanager_underminisrpartitioncount") == 1
    assert "kafka_topic_partition_in_sync_replica" not in (await scrape(simulated_cluster[2])).kinds
    await simulated_cluster.open(3)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster[1].pass_time(1)
    page = await scrape(simulated_cluster[1])
    assert page.value("kafka_server_replicamanager_isrshrinks_total") == 1
    assert page.value("kafka_server_replicamanager_isrexpands_total") == 1
    assert page.value("kafka_server_replicamanager_underreplicatedpartitions") == 0
