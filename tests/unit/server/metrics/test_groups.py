"""Groups of all three kinds, as kafka_exporter would tell them."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import produce
from tests.unit.broker.consumer_members import ConsumerMember, settle
from tests.unit.broker.house import House
from tests.unit.broker.members import Member, commit
from tests.unit.broker.share_members import ACCEPT, ShareMember
from tests.unit.broker.town import Town, in_town
from tests.unit.server.metrics.reading import Page, in_house, scrape

from headrace.server.metrics import groups

PREFIX = "kafka_consumergroup_"


def told(page: Page, name: str, group: str, topic: str = "t", partition: int | str = 0) -> float:
    return page.value(PREFIX + name, consumergroup=group, topic=topic, partition=partition)


def sum_of(page: Page, name: str, group: str, topic: str = "t") -> float:
    return page.value(f"{PREFIX}{name}_sum", consumergroup=group, topic=topic)


@in_house
async def test_a_classic_group_has_members_and_lag(house: House) -> None:
    await house.make_topic("t", 2)
    await produce(house, "t", b"a", b"b", b"c")
    member = Member(house)
    await member.enter()
    await member.commit(1)
    page = await scrape(house)
    assert page.value(f"{PREFIX}members", consumergroup="readers") == 1
    assert told(page, "current_offset", "readers") == 1
    assert told(page, "lag", "readers") == 2
    assert sum_of(page, "lag", "readers") == 2
    assert sum_of(page, "current_offset", "readers") == 1


@in_house
async def test_a_group_of_the_newer_protocol_does_too(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b", b"c")
    members = [ConsumerMember(house, name, "t", group="new") for name in ("m1", "m2")]
    await settle(*members)
    assert await members[0].commit(2) == 0
    page = await scrape(house)
    assert page.value(f"{PREFIX}members", consumergroup="new") == 2
    assert told(page, "lag", "new") == 1


@in_house
async def test_a_share_group_does_too(house: House) -> None:
    await house.make_topic("jobs")
    member = ShareMember(house)
    await member.beat()
    await member.fetch(0)
    await produce(house, "jobs", b"a", b"b", b"c")
    await member.fetch(0)
    await member.fetch(0, acks={0: [(0, 0, ACCEPT)]})
    page = await scrape(house)
    assert page.value(f"{PREFIX}members", consumergroup="workers") == 1
    assert told(page, "current_offset", "workers", "jobs") == 1
    assert told(page, "lag", "workers", "jobs") == 2
    assert sum_of(page, "lag", "workers", "jobs") == 2


@in_house
async def test_a_group_and_a_subscription_of_one_name_are_told_once(house: House) -> None:
    await house.make_topic("jobs")
    member = ShareMember(house, group="both")
    await member.fetch(0)
    await produce(house, "jobs", b"a", b"b", b"c")
    assert await commit(house, 2, "jobs", "both") == 0
    page = await scrape(house)
    assert told(page, "lag", "both", "jobs") == 1


@in_house
async def test_offsets_in_topics_that_are_gone_have_no_lag(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 5)
    house.broker.catalogue.on_gone.clear()
    await house.delete_topic("t")
    page = await scrape(house)
    assert f"{PREFIX}lag" not in page.kinds
    assert f"{PREFIX}lag_sum" not in page.kinds
    assert told(page, "current_offset", "readers") == 5


@in_house
async def test_a_group_may_be_called_anything(house: House) -> None:
    await house.make_topic("t")
    names = ['quo"te', "back\\slash", "new\nline", '"} 1\nfake_metric 2', "ü😀", "{a=b}", "\\n"]
    for name in names:
        assert await commit(house, 1, "t", name) == 0
    page = await scrape(house)
    assert "fake_metric" not in page.kinds
    for name in names:
        assert page.value(f"{PREFIX}members", consumergroup=name) == 0


@in_house
async def test_many_positions_are_told_per_topic(house: House) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "SERIES_MAX", 2)
        await house.make_topic("t")
        await produce(house, "t", b"a", b"b", b"c")
        for name in ("a", "b", "c"):
            await commit(house, 1, "t", name)
        page = await scrape(house)
        assert told(page, "lag", "a", partition="all") == 2
        assert sum_of(page, "lag", "c") == 2
        assert {labels["partition"] for labels in page.labels(f"{PREFIX}lag")} == {"all"}


@in_town(nodes=2, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
async def test_leaders_elsewhere_are_asked_how_far_their_partitions_reach(town: Town) -> None:
    await town.make_topic("here", (1,))
    await commit(town[1], 0, "here", "g")
    coordinator = town.leader("__consumer_offsets")
    other = town[3 - coordinator.node_id]
    await town.make_topic("there", (other.node_id,))
    await produce(other, "there", b"a", b"b", b"c")
    await commit(coordinator, 1, "there", "g")
    page = await scrape(coordinator)
    assert told(page, "lag", "g", "there") == 2
    other.kill()
    await coordinator.pass_time(1)
    page = await scrape(coordinator)
    assert told(page, "current_offset", "g", "there") == 1
    assert {labels["topic"] for labels in page.labels(f"{PREFIX}lag")} <= {"here"}
