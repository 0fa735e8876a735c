"""The life cycle that all coordinators share: create, load, serve, close, and load again after a failed write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, cast

import pytest

from headrace.broker.coordination.shards import OwnerCoordinator, Shard, ShardedCoordinator
from headrace.broker.coordination.state_log import StateLog
from headrace.broker.partition import Partition
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.testkit.clock import SimClock
from headrace.testkit.loop import SimLoop

LOAD_SECONDS = 1.0


class FakeLog:
    quarantined: str | None = None
    start_offset = 0

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset


class FakePartition:
    is_leader = True

    def __init__(self, index: int = 0, topic: str = "state", end_offset: int = 5) -> None:
        self.topic = topic
        self.index = index
        self.log = FakeLog(end_offset)

    @property
    def real(self) -> Partition:
        return cast("Partition", self)


class FakeShard(Shard):
    def __init__(self, name: str, partition: Partition, events: list[str], load_seconds: float) -> None:
        super().__init__(partition)
        self.name = name
        self.error: HeadraceError | None = None
        self.load_error: Exception | None = None
        self._events = events
        self._load_seconds = load_seconds
        events.append(f"create {name}")

    async def load(self) -> None:
        self._events.append(f"load {self.name}")
        await asyncio.sleep(self._load_seconds)
        if self.load_error is not None:
            raise self.load_error
        self._events.append(f"loaded {self.name}")
        self.is_loaded = True

    def close(self, error: HeadraceError) -> None:
        self._events.append(f"close {self.name}")
        self.error = error

    def tick(self) -> None:
        self._events.append(f"tick {self.name}")


class FakeCoordinator(ShardedCoordinator[int, FakeShard]):
    """Partitions of the topic "state" have shards, except the one with index 9."""

    def __init__(self, clock: SimClock, tick_seconds: float = 0.0) -> None:
        super().__init__(clock, tick_seconds)
        self.events: list[str] = []
        self.load_seconds = LOAD_SECONDS
        self._created = 0

    def _key_of(self, partition: Partition) -> int | None:
        return partition.index if partition.topic == "state" else None

    def _create_shard(self, partition: Partition) -> FakeShard | None:
        if partition.index == 9:
            return None
        self._created += 1
        return FakeShard(f"{partition.index}.{self._created}", partition, self.events, self.load_seconds)

    def shard(self, index: int = 0) -> FakeShard | None:
        return self._shards.get(index)

    def present(self, index: int = 0) -> FakeShard:
        return self._shards[index]

    def reload(self, shard: FakeShard, pause_seconds: float = 0.0) -> None:
        self._reload(shard, NotLeader("the write failed"), pause_seconds)

    async def when_loaded(self, index: int = 0) -> None:
        await self._when_loaded(index)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()


@pytest.fixture
def coordinator(loop: SimLoop) -> FakeCoordinator:
    return FakeCoordinator(SimClock(loop))


def run(loop: SimLoop, coordinator: ShardedCoordinator[Any, Any], scenario: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(coordinator.run())
            await asyncio.sleep(0)
            await scenario
            coordinator.stop()

    loop.run_until_complete(main())


def test_a_shard_is_loaded_in_the_background_and_then_served(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition().real)
        assert list(coordinator) == []
        assert not coordinator.is_loaded
        await asyncio.sleep(LOAD_SECONDS + 0.1)
        assert list(coordinator) == [coordinator.present()]
        assert coordinator.is_loaded
        assert coordinator.events == ["create 0.1", "load 0.1", "loaded 0.1"]

    run(loop, coordinator, scenario())


def test_a_shard_with_an_empty_log_is_loaded_from_the_start(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition(end_offset=0).real)
        assert coordinator.is_loaded
        await asyncio.sleep(1)
        assert coordinator.events == ["create 0.1"]

    run(loop, coordinator, scenario())


def test_a_shard_with_a_quarantined_log_is_not_taken_for_an_empty_one() -> None:
    partition = FakePartition(end_offset=0)
    partition.log.quarantined = "damaged"
    assert not FakeShard("0.1", partition.real, [], 0).is_loaded


def test_shards_of_leaderships_that_begin_before_run_are_loaded_by_it(
    loop: SimLoop, coordinator: FakeCoordinator
) -> None:
    coordinator.begin(FakePartition().real)
    assert coordinator.events == ["create 0.1"]

    async def scenario() -> None:
        await asyncio.sleep(LOAD_SECONDS + 0.1)
        assert coordinator.is_loaded

    run(loop, coordinator, scenario())


def test_partitions_without_shards_are_ignored(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    for partition in (FakePartition(topic="other"), FakePartition(9)):
        coordinator.begin(partition.real)
        coordinator.end(partition.real)
    assert coordinator.events == []
    assert coordinator.is_loaded


def test_the_end_of_a_leadership_closes_the_shard_in_the_same_step(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        await asyncio.sleep(LOAD_SECONDS + 0.1)
        shard = coordinator.present()
        coordinator.end(partition)
        assert coordinator.shard() is None
        assert isinstance(shard.error, NotLeader)
        assert shard.error.message == "this broker no longer leads state-0"

    run(loop, coordinator, scenario())


@pytest.mark.parametrize("seconds", [0, LOAD_SECONDS / 2])
def test_an_outdated_load_never_publishes_its_result(
    loop: SimLoop, coordinator: FakeCoordinator, seconds: float
) -> None:
    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        await asyncio.sleep(seconds)
        shard = coordinator.present()
        coordinator.end(partition)
        await asyncio.sleep(5)
        assert not shard.is_loaded
        assert "loaded 0.1" not in coordinator.events

    run(loop, coordinator, scenario())


def test_a_load_that_is_about_to_end_is_cancelled_as_well(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    """Its sleep is over when the leadership ends, but the load has not run since."""

    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + LOAD_SECONDS, coordinator.end, partition)
        shard = coordinator.present()
        await asyncio.sleep(5)
        assert not shard.is_loaded

    run(loop, coordinator, scenario())


def test_a_shard_is_closed_before_its_successor_is_created(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        await asyncio.sleep(0.1)
        coordinator.begin(partition)
        await asyncio.sleep(LOAD_SECONDS + 0.1)
        assert coordinator.events == ["create 0.1", "load 0.1", "close 0.1", "create 0.2", "load 0.2", "loaded 0.2"]
        assert list(coordinator) == [coordinator.present()]

    run(loop, coordinator, scenario())


def test_the_end_of_another_partition_with_the_same_name_closes_nothing(
    loop: SimLoop, coordinator: FakeCoordinator
) -> None:
    """A recreated topic has other partitions, whose leadership may begin before the old one ends."""
    old, new = FakePartition(end_offset=0).real, FakePartition(end_offset=0).real
    coordinator.begin(old)
    coordinator.begin(new)
    coordinator.end(old)
    assert coordinator.events == ["create 0.1", "close 0.1", "create 0.2"]
    assert coordinator.present().partition is new


@pytest.mark.parametrize("error", [NotLeader, NotCoordinator, UnknownTopicOrPartition])
def test_a_load_ends_quietly_when_the_leadership_is_lost(
    loop: SimLoop, coordinator: FakeCoordinator, error: type[HeadraceError]
) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition().real)
        coordinator.present().load_error = error("lost")
        await asyncio.sleep(5)
        assert not coordinator.is_loaded

    run(loop, coordinator, scenario())


def test_an_unexpected_error_of_a_load_ends_run(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition().real)
        coordinator.present().load_error = RuntimeError("a bug")
        await asyncio.sleep(5)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(loop, coordinator, scenario())
    assert caught.value.subgroup(RuntimeError) is not None


# Reload


def test_after_a_failed_write_the_shard_is_loaded_again_after_a_pause(
    loop: SimLoop, coordinator: FakeCoordinator
) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition().real)
        await asyncio.sleep(LOAD_SECONDS + 0.1)
        failed = coordinator.present()
        coordinator.reload(failed, pause_seconds=2.0)
        assert failed.error is not None
        assert failed.error.message == "the write failed"
        assert coordinator.events[3:] == ["close 0.1", "create 0.2"]
        await asyncio.sleep(1.9)
        assert coordinator.events[5:] == [], "the pause is not over"
        await asyncio.sleep(LOAD_SECONDS + 0.2)
        assert coordinator.events[5:] == ["load 0.2", "loaded 0.2"]

    run(loop, coordinator, scenario())


def test_a_reload_after_the_leadership_has_ended_has_no_effect(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    partition = FakePartition(end_offset=0)
    coordinator.begin(partition.real)
    outdated = coordinator.present()
    coordinator.begin(partition.real)
    coordinator.reload(outdated)
    assert coordinator.events == ["create 0.1", "close 0.1", "create 0.2"]
    partition.is_leader = False
    coordinator.reload(coordinator.present())
    assert coordinator.events[3:] == ["close 0.2"]
    assert coordinator.shard() is None


def test_the_pause_before_a_reload_ends_with_the_leadership(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        coordinator.reload(coordinator.present(), pause_seconds=2.0)
        await asyncio.sleep(1)
        coordinator.end(partition)
        await asyncio.sleep(5)
        assert coordinator.events == ["create 0.1", "close 0.1", "create 0.2", "close 0.2"]

    run(loop, coordinator, scenario())


# Waiting for a load


def test_a_request_waits_for_a_load(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    async def scenario() -> None:
        await coordinator.when_loaded()
        coordinator.begin(FakePartition().real)
        await coordinator.when_loaded()
        assert coordinator.is_loaded
        await coordinator.when_loaded()

    run(loop, coordinator, scenario())


def test_a_request_that_waits_too_long_fails_and_the_load_goes_on(loop: SimLoop, coordinator: FakeCoordinator) -> None:
    coordinator.load_seconds = 6.0

    async def scenario() -> None:
        coordinator.begin(FakePartition().real)
        with pytest.raises(CoordinatorLoading, match="state-0 is still being loaded; retry"):
            await coordinator.when_loaded()
        await asyncio.sleep(1.1)
        assert coordinator.is_loaded

    run(loop, coordinator, scenario())


def test_a_request_that_waits_for_a_load_returns_when_the_leadership_ends(
    loop: SimLoop, coordinator: FakeCoordinator
) -> None:
    async def scenario() -> None:
        partition = FakePartition().real
        coordinator.begin(partition)
        waiting = asyncio.create_task(coordinator.when_loaded())
        await asyncio.sleep(0.1)
        coordinator.end(partition)
        await asyncio.sleep(0.1)
        assert waiting.done()

    run(loop, coordinator, scenario())


# Maintenance and shutdown


def test_loaded_shards_are_maintained_at_the_interval(loop: SimLoop) -> None:
    coordinator = FakeCoordinator(SimClock(loop), tick_seconds=10.0)

    async def scenario() -> None:
        coordinator.begin(FakePartition(0, end_offset=0).real)
        coordinator.load_seconds = 60.0
        coordinator.begin(FakePartition(1).real)
        coordinator.tick()
        await asyncio.sleep(10)
        coordinator.events.clear()
        coordinator.tick()
        coordinator.tick()
        await asyncio.sleep(9)
        coordinator.tick()
        assert coordinator.events == ["tick 0.1"]

    run(loop, coordinator, scenario())


def test_stop_closes_all_shards_and_no_leadership_begins_afterwards(
    loop: SimLoop, coordinator: FakeCoordinator
) -> None:
    async def scenario() -> None:
        coordinator.begin(FakePartition(0, end_offset=0).real)
        coordinator.begin(FakePartition(1).real)
        await asyncio.sleep(0.1)
        coordinator.stop()
        assert coordinator.events[-2:] == ["close 0.1", "close 1.2"]
        errors = [coordinator.present(index).error for index in (0, 1)]
        assert [error and error.message for error in errors] == ["the broker is shutting down"] * 2
        coordinator.begin(FakePartition(2).real)
        coordinator.reload(coordinator.present(0))
        coordinator.tick()
        await asyncio.sleep(5)
        assert "create 2.3" not in coordinator.events
        assert not any(event.startswith(("loaded", "tick")) for event in coordinator.events)

    run(loop, coordinator, scenario())


def test_a_jump_of_the_wall_clock_does_not_move_the_time_of_the_shards(loop: SimLoop) -> None:
    clock = SimClock(loop)
    coordinator = FakeCoordinator(clock)
    before_ms = coordinator.now_ms()
    clock.jump(3_600_000)
    assert coordinator.now_ms() == before_ms


# Coordinators of owners


class FakeOwnersLog(StateLog):
    def __init__(self) -> None:
        self.topic = "state"
        self.exists = False

    async def ensure(self) -> None:
        self.exists = True

    def partition_index_of(self, owner: str) -> int:
        return len(owner)


class FakeOwnerCoordinator(OwnerCoordinator[FakeShard]):
    def __init__(self, clock: SimClock) -> None:
        self.log = FakeOwnersLog()
        self.session_has_expired = False
        super().__init__(self.log, clock, lambda: self.session_has_expired)

    def of(self, owner: str) -> FakeShard:
        self._ensure_running()
        return self._shards[self.log.partition_index_of(owner)]

    def _create_shard(self, partition: Partition) -> FakeShard:
        return FakeShard("owner", partition, [], LOAD_SECONDS)


def test_a_coordinator_of_owners_creates_the_topic_and_finds_the_shard(loop: SimLoop) -> None:
    coordinator = FakeOwnerCoordinator(SimClock(loop))

    async def scenario() -> None:
        coordinator.begin(FakePartition(3, end_offset=0).real)
        coordinator.begin(FakePartition(3, topic="other").real)
        shard = await coordinator.ensure("abc")
        assert coordinator.log.exists
        assert shard.partition.index == 3
        coordinator.ensure_loaded()
        coordinator.begin(FakePartition(4).real)
        with pytest.raises(CoordinatorLoading):
            coordinator.ensure_loaded()

    run(loop, coordinator, scenario())


def test_a_coordinator_of_owners_serves_nothing_without_a_session_or_after_stop(loop: SimLoop) -> None:
    coordinator = FakeOwnerCoordinator(SimClock(loop))

    async def scenario() -> None:
        partition = FakePartition(3, end_offset=0).real
        coordinator.begin(partition)
        coordinator.session_has_expired = True
        for call in (coordinator.ensure_loaded, lambda: coordinator.of("abc")):
            with pytest.raises(CoordinatorNotAvailable, match="session of this broker has expired"):
                call()
        coordinator.session_has_expired = False
        shard = coordinator.of("abc")
        coordinator.stop()
        assert isinstance(shard.error, CoordinatorNotAvailable)
        with pytest.raises(CoordinatorNotAvailable, match="shutting down"):
            await coordinator.ensure("abc")
        coordinator.end(partition)
        assert isinstance(shard.error, NotCoordinator)

    run(loop, coordinator, scenario())
