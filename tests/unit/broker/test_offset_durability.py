"""What OffsetFetch has told once, no crash can take back."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, commit, committed

from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


async def found(house: House, version: int) -> int:
    if version < 8:
        return (await committed(house, version=version))[0]
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    (answer,) = (await house.ask(OffsetFetchRequest(groups=[group]), version)).groups
    assert answer.error_code == 0
    return int(answer.topics[0].partitions[0].committed_offset)


@pytest.mark.parametrize("version", [7, 8])
async def test_a_commit_is_told_only_when_it_is_durable(house: House, version: int) -> None:
    await house.make_topic("t")
    assert await commit(house, 1) == 0
    house.host.disk.delay_seconds = (0.1, 0.2)
    committing = asyncio.create_task(commit(house, 42))
    await asyncio.sleep(0.01)
    assert await found(house, version) == 42
    house.kill(keep_page_cache=False)
    await house.open()
    assert await found(house, version) == 42
    committing.cancel()


@pytest.mark.parametrize("version", [7, 8])
async def test_a_log_of_offsets_that_has_failed_tells_nothing_new(house: House, version: int) -> None:
    await house.make_topic("t")
    assert await commit(house, 1) == 0
    house.host.disk.fail_next("sync", "*.log")
    assert await commit(house, 42) == 15
    request = OffsetFetchRequest(group_id=GROUP, groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    response = await house.ask(request, version)
    told = response.groups[0] if version >= 8 else response
    assert (told.error_code, told.topics) == (15, [])
