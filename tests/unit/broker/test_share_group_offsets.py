"""Where share groups stand is told, changed and forgotten by their coordinator, wherever the partitions are led."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.broker.asking import produce
from tests.unit.broker.consumer_members import ConsumerMember
from tests.unit.broker.house import House
from tests.unit.broker.members import delete_group, listed
from tests.unit.broker.queueing import configure, describe
from tests.unit.broker.share_members import ACCEPT, GROUP, TOPIC, ShareMember, coordinator, offsets
from tests.unit.broker.town import Town, in_town

from headrace.model.ids import ZERO_ID
from headrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from headrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from headrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)

OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
NOT_AVAILABLE = 15
NOT_EMPTY = 68
NOT_FOUND = 69


async def told(
    house: House, topics: Mapping[str, list[int]] | None = None, group: str = GROUP, version: int = 1
) -> Any:
    named = None if topics is None else [DescribeShareGroupOffsetsRequestTopic(*one) for one in topics.items()]
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, named)])
    (answer,) = (await house.ask(request, version)).groups
    return answer


async def standing(
    house: House, topics: Mapping[str, list[int]] | None = None, group: str = GROUP
) -> dict[tuple[str, int], tuple[int, int]]:
    """Start offset and lag by topic and partition."""
    answer = await told(house, topics, group)
    assert answer.error_code == 0, answer
    return {
        (topic.topic_name, one.partition_index): (one.start_offset, one.lag)
        for topic in answer.topics
        for one in topic.partitions
        if one.error_code == 0
    }


async def alter(house: House, offsets: Mapping[tuple[str, int], int], group: str = GROUP) -> Any:
    """The error code of each, or that of the whole."""
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(AlterShareGroupOffsetsRequestPartition(index, offset))
    named = [AlterShareGroupOffsetsRequestTopic(*one) for one in topics.items()]
    response = await house.ask(AlterShareGroupOffsetsRequest(group, named), 0)
    if response.error_code:
        return response.error_code
    return {
        (topic.topic_name, one.partition_index): one.error_code
        for topic in response.responses
        for one in topic.partitions
    }


async def forget(house: House, *topics: str, group: str = GROUP) -> Any:
    named = [DeleteShareGroupOffsetsRequestTopic(topic) for topic in topics]
    response = await house.ask(DeleteShareGroupOffsetsRequest(group, named), 0)
    return response.error_code or {topic.topic_name: topic.error_code for topic in response.responses}


async def worked(house: House, partitions: Sequence[int] = (0,), *, leaves: bool = True) -> ShareMember:
    """A member that has settled messages 0, 1 and 3 of five in each partition."""
    await configure(house, GROUP, share_auto_offset_reset="earliest")
    for index in partitions:
        await produce(house, TOPIC, *(b"%d" % number for number in range(5)), partition=index)
    member = ShareMember(house)
    await member.beat()
    await member.take(*partitions)
    acks = {index: [(0, 1, ACCEPT), (3, 3, ACCEPT)] for index in partitions}
    await member.acknowledge(acks, epoch=-1)
    if leaves:
        await member.leave()
    return member


async def test_where_a_group_stands_is_told(house: House) -> None:
    await house.make_topic(TOPIC, 2)
    await house.make_topic("other")
    await worked(house)
    assert await standing(house) == {(TOPIC, 0): (2, 2), (TOPIC, 1): (-1, -1)}
    asked = {TOPIC: [1, 0, 9], "other": [0], "nothing": [3]}
    answer = await told(house, asked)
    assert [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in answer.topics] == [
        (TOPIC, [1, 0, 9]),
        ("other", [0]),
        ("nothing", [3]),
    ]
    assert await standing(house, asked) == {
        (TOPIC, 0): (2, 2),
        **dict.fromkeys([(TOPIC, 1), (TOPIC, 9), ("other", 0), ("nothing", 3)], (-1, -1)),
    }
    assert answer.topics[0].topic_id == house.broker.catalogue.topic(TOPIC).id
    assert answer.topics[2].topic_id == ZERO_ID
    assert (await told(house, version=0)).topics[0].partitions[0].lag == -1


async def test_a_group_that_has_been_nowhere_stands_nowhere(house: House) -> None:
    await house.make_topic(TOPIC)
    await worked(house)
    assert await standing(house, group="others") == {}
    await ConsumerMember(house, "c", TOPIC, group="consumers").beat()
    assert (await told(house, group="consumers")).error_code == NOT_FOUND


async def test_a_group_goes_on_from_where_it_is_told_to(house: House) -> None:
    await house.make_topic(TOPIC, 2)
    member = await worked(house)
    assert await alter(house, {(TOPIC, 0): 1, (TOPIC, 1): 0}) == {(TOPIC, 0): 0, (TOPIC, 1): 0}
    assert await standing(house) == {(TOPIC, 0): (1, 4), (TOPIC, 1): (0, 0)}
    assert offsets(await member.take(0)) == [1, 2, 3, 4]
    assert await alter(house, {(TOPIC, 0): 2, (TOPIC, 7): 0, ("nothing", 0): 0}) == {
        (TOPIC, 0): 0,
        (TOPIC, 7): UNKNOWN_TOPIC,
        ("nothing", 0): UNKNOWN_TOPIC,
    }
    assert await alter(house, {(TOPIC, 0): 99}) == {(TOPIC, 0): OUT_OF_RANGE}
    assert (await standing(house))[TOPIC, 0] == (2, 3)


async def test_a_group_that_does_not_exist_is_made_by_telling_where_it_begins(house: House) -> None:
    await house.make_topic(TOPIC)
    await produce(house, TOPIC, b"a", b"b")
    assert await alter(house, {(TOPIC, 0): 1}) == {(TOPIC, 0): 0}
    assert await listed(house) == {GROUP: "Empty"}
    member = ShareMember(house)
    assert (await member.beat()).error_code == 0
    assert offsets(await member.take(0)) == [1]


async def test_a_group_with_members_stays_where_it_is(house: House) -> None:
    await house.make_topic(TOPIC)
    await worked(house, leaves=False)
    assert await alter(house, {(TOPIC, 0): 0}) == NOT_EMPTY
    assert await forget(house, TOPIC) == NOT_EMPTY
    assert await standing(house) == {(TOPIC, 0): (2, 2)}


async def test_a_group_of_another_kind_has_no_such_offsets(house: House) -> None:
    await house.make_topic(TOPIC)
    await ConsumerMember(house, "c", TOPIC, group="consumers").beat()
    assert await alter(house, {(TOPIC, 0): 0}, "consumers") == NOT_FOUND
    assert await forget(house, TOPIC, group="consumers") == NOT_FOUND
    assert await forget(house, TOPIC, group="nobody") == NOT_FOUND


async def test_a_topic_that_is_forgotten_is_begun_anew(house: House) -> None:
    await house.make_topic(TOPIC, 2)
    member = await worked(house)
    assert await forget(house, TOPIC, "nothing") == {TOPIC: 0, "nothing": UNKNOWN_TOPIC}
    assert await standing(house) == {}
    assert await forget(house, TOPIC) == {TOPIC: 0}
    assert offsets(await member.take(0)) == [0, 1, 2, 3, 4]


async def test_a_deleted_group_leaves_nothing_behind(house: House) -> None:
    await house.make_topic(TOPIC, 2)
    await worked(house, (0, 1))
    assert await delete_group(house, GROUP) == 0
    assert await standing(house) == {}
    assert [await describe(house, partition=index) for index in (0, 1)] == [[], []]


async def spread_out(town: Town) -> House:
    """A partition on each broker, and a group that has been at all of them; its coordinator."""
    await town.make_topic(TOPIC, (1,), (2,), (3,))
    found = await coordinator(town)
    for index in range(3):
        house = town[index + 1]
        await configure(house, GROUP, share_auto_offset_reset="earliest")
        await produce(house, TOPIC, b"a", b"b", b"c", partition=index)
        member = ShareMember(house)
        assert (await member.beat(found)).error_code == 0
        assert offsets(await member.take(index)) == [0, 1, 2]
        await member.acknowledge({index: [(0, 0, ACCEPT)]}, epoch=-1)
    assert (await member.beat(found, member_epoch=-1)).error_code == 0
    return found


@in_town(3)
async def test_the_coordinator_asks_the_leaders_on_other_brokers(town: Town) -> None:
    house = await spread_out(town)
    assert await standing(house) == dict.fromkeys([(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)], (1, 2))
    assert await alter(house, {(TOPIC, index): index for index in range(3)}) == dict.fromkeys(
        [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)], 0
    )
    assert await standing(house) == {(TOPIC, index): (index, 3 - index) for index in range(3)}
    assert await forget(house, TOPIC) == {TOPIC: 0}
    assert await standing(house) == {}


@in_town(3)
async def test_a_group_is_deleted_only_if_all_leaders_can_be_told(town: Town) -> None:
    house = await spread_out(town)
    gone = next(other for other in town.up if other is not house)
    gone.kill()
    assert await delete_group(house, GROUP) == NOT_AVAILABLE
    assert GROUP in await listed(house)
    await gone.open()
    await town.until(lambda: all(town.leads(index + 1, TOPIC, index) for index in range(3)))
    await house.pass_time(1)
    assert await delete_group(house, GROUP) == 0
    assert await standing(house) == {}
