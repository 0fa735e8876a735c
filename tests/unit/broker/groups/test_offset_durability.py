"""No crash reverts an offset that OffsetFetch has returned."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.groups.classic_members import GROUP, commit, committed
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import CoordinatorNotAvailable
from headrace.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic


async def found(simulated_broker: SimulatedBroker, version: int) -> int:
    if version < 8:
        return (await committed(simulated_broker, version=version))[0]
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    (response,) = (await simulated_broker.send(OffsetFetchRequest(groups=[group]), version)).groups
    assert response.error_code == 0
    return int(response.topics[0].partitions[0].committed_offset)


@pytest.mark.parametrize("version", [7, 8])
async def test_a_commit_is_visible_only_when_it_is_durable(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    assert await commit(simulated_broker, 1) == 0
    simulated_broker.host.disk.delay_seconds = (0.1, 0.2)
    committing = asyncio.create_task(commit(simulated_broker, 42))
    await asyncio.sleep(0.01)
    assert await found(simulated_broker, version) == 42
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert await found(simulated_broker, version) == 42
    committing.cancel()


@pytest.mark.parametrize("version", [7, 8])
async def test_a_failed_offsets_log_returns_no_new_offsets(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    assert await commit(simulated_broker, 1) == 0
    simulated_broker.host.disk.fail_next("sync", "*.log")
    assert await commit(simulated_broker, 42) == CoordinatorNotAvailable.code
    request = OffsetFetchRequest(group_id=GROUP, groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    response = await simulated_broker.send(request, version)
    result = response.groups[0] if version >= 8 else response
    assert (result.error_code, result.topics) == (CoordinatorNotAvailable.code, [])
