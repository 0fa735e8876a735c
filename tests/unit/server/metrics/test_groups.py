"""Metrics of classic, consumer and share groups, as kafka_exporter reports them."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.groups.classic_members import ClassicMember, commit
from tests.unit.broker.groups.consumer_members import ConsumerMember, settle
from tests.unit.broker.share_groups.share_members import ACCEPT, ShareMember
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster
from tests.unit.server.metrics.metrics_page import MetricsPage, scrape, with_simulated_broker

from headrace.server.metrics import groups

PREFIX = "kafka_consumergroup_"


def metric(page: MetricsPage, name: str, group: str, topic: str = "t", partition: int | str = 0) -> float:
    return page.value(PREFIX + name, consumergroup=group, topic=topic, partition=partition)


def sum_of(page: MetricsPage, name: str, group: str, topic: str = "t") -> float:
    return page.value(f"{PREFIX}{name}_sum", consumergroup=group, topic=topic)


@with_simulated_broker
async def test_a_classic_group_has_members_and_lag(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    member = ClassicMember(simulated_broker)
    await member.enter()
    await member.commit(1)
    page = await scrape(simulated_broker)
    assert page.value(f"{PREFIX}members", consumergroup="readers") == 1
    assert metric(page, "current_offset", "readers") == 1
    assert metric(page, "lag", "readers") == 2
    assert sum_of(page, "lag", "readers") == 2
    assert sum_of(page, "current_offset", "readers") == 1


@with_simulated_broker
async def test_a_consumer_group_has_members_and_lag(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    members = [ConsumerMember(simulated_broker, name, "t", group="new") for name in ("m1", "m2")]
    await settle(*members)
    assert await members[0].commit(2) == 0
    page = await scrape(simulated_broker)
    assert page.value(f"{PREFIX}members", consumergroup="new") == 2
    assert metric(page, "lag", "new") == 1


@with_simulated_broker
async def test_a_share_group_has_members_and_lag(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    member = ShareMember(simulated_broker)
    await member.beat()
    await member.fetch(0)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    await member.fetch(0)
    await member.fetch(0, acks={0: [(0, 0, ACCEPT)]})
    page = await scrape(simulated_broker)
    assert page.value(f"{PREFIX}members", consumergroup="workers") == 1
    assert metric(page, "current_offset", "workers", "jobs") == 1
    assert metric(page, "lag", "workers", "jobs") == 2
    assert sum_of(page, "lag", "workers", "jobs") == 2


@with_simulated_broker
async def test_a_group_and_a_subscription_of_the_same_name_are_reported_once(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    member = ShareMember(simulated_broker, group="both")
    await member.fetch(0)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    assert await commit(simulated_broker, 2, "jobs", "both") == 0
    page = await scrape(simulated_broker)
    assert metric(page, "lag", "both", "jobs") == 1


@with_simulated_broker
async def test_offsets_of_deleted_topics_have_no_lag(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 5)
    simulated_broker.broker.catalogue.on_topic_deleted.clear()
    await simulated_broker.delete_topic("t")
    page = await scrape(simulated_broker)
    assert f"{PREFIX}lag" not in page.kinds
    assert f"{PREFIX}lag_sum" not in page.kinds
    assert metric(page, "current_offset", "readers") == 5


@with_simulated_broker
async def test_group_names_are_escaped(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    names = ['quo"te', "back\\slash", "new\nline", '"} 1\nfake_metric 2', "ü😀", "{a=b}", "\\n"]
    for name in names:
        assert await commit(simulated_broker, 1, "t", name) == 0
    page = await scrape(simulated_broker)
    assert "fake_metric" not in page.kinds
    for name in names:
        assert page.value(f"{PREFIX}members", consumergroup=name) == 0


@with_simulated_broker
async def test_many_positions_are_summed_per_topic(simulated_broker: SimulatedBroker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "SERIES_MAX", 2)
        await simulated_broker.create_topic("t")
        await produce(simulated_broker, "t", b"a", b"b", b"c")
        for name in ("a", "b", "c"):
            await commit(simulated_broker, 1, "t", name)
        page = await scrape(simulated_broker)
        assert metric(page, "lag", "a", partition="all") == 2
        assert sum_of(page, "lag", "c") == 2
        assert {labels["partition"] for labels in page.labels(f"{PREFIX}lag")} == {"all"}


@in_simulated_cluster(nodes=2, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
async def test_end_offsets_are_requested_from_remote_leaders(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("here", (1,))
    await commit(simulated_cluster[1], 0, "here", "g")
    coordinator = simulated_cluster.leader("__consumer_offsets")
    other = simulated_cluster[3 - coordinator.node_id]
    await simulated_cluster.create_topic("there", (other.node_id,))
    await produce(other, "there", b"a", b"b", b"c")
    await commit(coordinator, 1, "there", "g")
    page = await scrape(coordinator)
    assert metric(page, "lag", "g", "there") == 2
    other.kill()
    await coordinator.pass_time(1)
    page = await scrape(coordinator)
    assert metric(page, "current_offset", "g", "there") == 1
    assert {labels["topic"] for labels in page.labels(f"{PREFIX}lag")} <= {"here"}
