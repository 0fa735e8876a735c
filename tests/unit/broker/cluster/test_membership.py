"""A broker's epoch, its session, and its entry among the live brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headrace.broker.cluster.membership import (
    BrokerRegistration,
    BrokerStart,
    NodeIdTaken,
    WrongDataFolder,
    assign_broker_epoch,
    confirm_broker_epoch,
)
from headrace.model.registry_records import BrokerRecord, ControllerRecord
from headrace.registry.brokers import CONTROLLER_KEY, epoch_key, live_key
from headrace.registry.interface import Create, RegistryUnavailable, SessionLost, SessionState, Set, decode_json
from headrace.testkit.disk import SimDisk
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World


class MembershipHarness:
    """One node id in a world, and the registry that all share."""

    def __init__(self) -> None:
        self.world = World(seed=1)
        self.state = SimRegistryEnsemble()
        self.disk = self.world.disk
        self.disk.make_directory("/data")
        self.refreshes = 0
        self.may_refresh = asyncio.Event()
        self.may_refresh.set()

    async def number(self, disk: SimDisk | None = None, node_id: int = 1) -> BrokerStart:
        return await assign_broker_epoch(
            SimRegistry(self.state), disk or self.disk, self.world.clock, "/data", node_id, SeededEntropy(1)
        )

    def member(self, epoch: int = 1, previous_broker_epoch: int = 0) -> tuple[SimRegistry, BrokerRegistration]:
        registry = SimRegistry(self.state)
        return registry, BrokerRegistration(
            registry,
            self.world.clock,
            1,
            BrokerStart("c", epoch, previous_broker_epoch, has_latest_data=True),
            self.refresh,
        )

    async def refresh(self) -> None:
        """How membership reads the registry again; here it holds nothing else."""
        await self.may_refresh.wait()
        self.refreshes += 1

    def listed(self) -> BrokerRecord | None:
        entry = self.state.entries.get(live_key(1))
        return None if entry is None else decode_json(entry, BrokerRecord)


def on_stage(test: Callable[[MembershipHarness], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        harness = MembershipHarness()
        harness.world.run(test(harness))  # type: ignore[arg-type]
        harness.world.close()

    run.__name__ = test.__name__
    return run


# Its number


@on_stage
async def test_every_start_has_its_own_broker_epoch_and_the_folder_records_the_last(harness: MembershipHarness) -> None:
    starts = [await harness.number() for _ in range(3)]
    assert [(start.epoch, start.previous_broker_epoch, start.has_latest_data) for start in starts] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, True),
    ]
    assert len({start.cluster_id for start in starts}) == 1


@on_stage
async def test_an_empty_folder_in_place_of_a_used_one_lacks_acknowledged_data(
    harness: MembershipHarness,
) -> None:
    await harness.number()
    harness.disk.remove("/data/broker")
    start = await harness.number()
    assert (start.epoch, start.has_latest_data) == (2, False)


@on_stage
async def test_an_old_copy_of_a_folder_lacks_acknowledged_data(harness: MembershipHarness) -> None:
    await harness.number()
    old = harness.disk.read("/data/broker")
    await harness.number()
    harness.disk.write_atomically("/data/broker", old)
    start = await harness.number()
    assert (start.epoch, start.previous_broker_epoch, start.has_latest_data) == (3, 1, False)


@on_stage
async def test_a_folder_that_lacks_data_is_not_trusted_until_the_broker_has_reported_it(
    harness: MembershipHarness,
) -> None:
    """A crash may come before it has: the next start must not take the empty folder for the one that was used last."""
    await harness.number()
    harness.disk.remove("/data/broker")
    assert not (await harness.number()).has_latest_data
    start = await harness.number()
    assert not start.has_latest_data
    await confirm_broker_epoch(harness.disk, "/data", 1, start)
    assert (await harness.number()).has_latest_data


@on_stage
async def test_a_crash_between_folder_and_registry_does_not_invalidate_the_folder(harness: MembershipHarness) -> None:
    await harness.number()
    registry = SimRegistry(harness.state)
    registry.commit = _unavailable  # type: ignore[method-assign, assignment]
    with pytest.raises(RegistryUnavailable):
        await assign_broker_epoch(registry, harness.disk, harness.world.clock, "/data", 1, SeededEntropy(1))
    start = await harness.number()
    assert (start.epoch, start.has_latest_data) == (3, True)


@on_stage
async def test_another_folder_gets_no_broker_epoch_while_the_broker_of_that_id_is_live(
    harness: MembershipHarness,
) -> None:
    """Else the folder of the one that is up would be behind, and what it holds be distrusted."""
    await harness.number()
    _, member = harness.member()
    await member.open()
    await member.join("one", 9092, None)
    empty = SimDisk(2)
    empty.make_directory("/data")
    with pytest.raises(NodeIdTaken, match="is running at one:9092"):
        await harness.number(empty)
    assert (await harness.number()).has_latest_data


@on_stage
async def test_an_empty_folder_waits_for_the_session_of_the_lost_one_to_expire(harness: MembershipHarness) -> None:
    await harness.number()
    registry, member = harness.member()
    await member.open()
    await member.join("one", 9092, None)
    asyncio.get_running_loop().call_later(5, registry.crash)
    harness.disk.remove("/data/broker")
    start = await harness.number()
    assert (start.epoch, start.has_latest_data) == (2, False)


@on_stage
async def test_of_two_concurrent_starts_one_lacks_the_latest_data(harness: MembershipHarness) -> None:
    """Two folders under one node id: whichever is second was not used last."""
    await harness.number()
    copy = SimDisk(2)
    copy.make_directory("/data")
    copy.write_atomically("/data/broker", harness.disk.read("/data/broker"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(harness.number(disk)) for disk in (harness.disk, copy)]
    starts = [task.result() for task in tasks]
    assert {start.epoch for start in starts} == {2, 3}
    assert sorted(start.has_latest_data for start in starts) == [False, True]


@on_stage
async def test_the_folder_of_another_cluster_or_broker_is_rejected_and_left_unchanged(
    harness: MembershipHarness,
) -> None:
    await harness.number()
    before = harness.disk.read("/data/broker")
    with pytest.raises(WrongDataFolder, match="belongs to broker 1, not 2"):
        await harness.number(node_id=2)
    harness.state = SimRegistryEnsemble()
    with pytest.raises(WrongDataFolder, match="belongs to cluster"):
        await assign_broker_epoch(
            SimRegistry(harness.state), harness.disk, harness.world.clock, "/data", 1, SeededEntropy(2)
        )
    assert harness.disk.read("/data/broker") == before
    assert epoch_key(1) not in harness.state.entries


async def _unavailable(_operations: object) -> None:
    raise RegistryUnavailable("The registry cannot be reached")


# Its session


@on_stage
async def test_a_broker_is_listed_from_join_to_leave(harness: MembershipHarness) -> None:
    _, member = harness.member()
    await member.open()
    assert (member.session_valid, harness.listed()) == (True, None)
    await member.join("h", 9092, "r")
    assert harness.listed() == BrokerRecord(node_id=1, epoch=1, host="h", port=9092, rack="r")
    await member.leave()
    assert harness.listed() is None


@on_stage
async def test_a_stopping_broker_is_marked_as_draining_in_every_new_session(
    harness: MembershipHarness,
) -> None:
    _, member = harness.member()
    await member.open()
    await member.begin_controlled_shutdown()  # not listed yet: there is nothing to say
    await member.join("h", 9092, None)
    await member.begin_controlled_shutdown()
    assert (found := harness.listed()) is not None
    assert found.is_draining
    harness.world.local.start(member.run(), "run")
    harness.state.expire(member.session)
    await asyncio.sleep(1)
    assert (found := harness.listed()) is not None
    assert found.is_draining


@on_stage
async def test_a_lost_session_is_replaced_under_the_same_broker_epoch(harness: MembershipHarness) -> None:
    _, member = harness.member()
    states: list[SessionState] = []
    member.on_state.append(states.append)
    await member.open()
    await member.join("h", 9092, None)
    harness.world.local.start(member.run(), "run")
    first = member.session
    harness.state.expire(first)
    assert harness.listed() is None
    await asyncio.sleep(1)
    assert member.session_valid
    assert member.session != first
    assert (found := harness.listed()) is not None
    assert found.epoch == 1
    assert states == [SessionState.HELD, SessionState.DOUBTED, SessionState.LOST, SessionState.HELD]


@on_stage
async def test_the_session_is_invalid_without_contact_and_valid_again_after_it(harness: MembershipHarness) -> None:
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    harness.world.local.start(member.run(), "run")
    first = member.session
    registry.disconnect()
    await asyncio.sleep(0.1)
    assert not member.session_valid
    registry.reconnect()
    await asyncio.sleep(0.1)
    assert member.session_valid
    assert member.session == first


@on_stage
async def test_a_session_lost_again_during_registration_is_replaced_again(harness: MembershipHarness) -> None:
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    running = harness.world.local.start(member.run(), "run")
    commit, losses = registry.commit, 3

    async def lose_then_commit(operations: list[Create]) -> None:
        nonlocal losses
        if losses:
            losses -= 1
            harness.state.expire(member.session)
            await asyncio.sleep(0)
        await commit(operations)

    registry.commit = lose_then_commit  # type: ignore[method-assign, assignment]
    harness.state.expire(member.session)
    await asyncio.sleep(5)
    assert (losses, member.session_valid, running.done()) == (0, True, False)
    assert harness.listed() is not None


@on_stage
async def test_an_unreadable_registry_is_read_again_in_the_same_session(
    harness: MembershipHarness,
) -> None:
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    running = harness.world.local.start(member.run(), "run")
    get, failures = registry.get, 3

    async def fail_then_get(key: str) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise RegistryUnavailable("The registry cannot be reached")
        return await get(key)

    registry.get = fail_then_get  # type: ignore[method-assign, assignment]
    harness.state.expire(member.session)
    await asyncio.sleep(5)
    assert (failures, member.session_valid, running.done()) == (0, True, False)
    assert harness.listed() is not None


@on_stage
async def test_a_session_that_is_lost_before_it_joins_is_replaced_too(harness: MembershipHarness) -> None:
    """Recovery of the logs comes in between and may take long."""
    _, member = harness.member()
    await member.open()
    harness.state.expire(member.session)
    await asyncio.sleep(0.1)
    await member.join("h", 9092, None)
    assert member.session_valid
    assert harness.listed() is not None


@on_stage
async def test_a_broker_gives_up_when_the_registry_stays_unavailable(harness: MembershipHarness) -> None:
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    running = harness.world.local.start(member.run(), "run")
    harness.state.expire(member.session)
    await asyncio.sleep(0)
    registry.unavailable = True
    await asyncio.sleep(30)
    assert not running.done()
    await asyncio.sleep(60)
    assert isinstance(running.exception(), RegistryUnavailable | SessionLost)


# Its name


@on_stage
async def test_the_live_entry_of_the_previous_start_is_replaced_at_once(harness: MembershipHarness) -> None:
    """That process is dead, for it would hold the folder; its session may live on for a while."""
    _, before = harness.member(epoch=1)
    await before.open()
    await before.join("old", 1, None)
    _, member = harness.member(epoch=2, previous_broker_epoch=1)
    await member.open()
    await member.join("new", 2, None)
    assert (found := harness.listed()) is not None
    assert (found.epoch, found.host) == (2, "new")
    harness.state.expire(before.session)
    assert harness.listed() is not None, "the entry belongs to the new session"


@on_stage
async def test_a_controller_that_starts_again_leaves_no_empty_seat_behind(harness: MembershipHarness) -> None:
    first, before = harness.member()
    await before.open()
    await before.join("a", 1, None)
    seat = ControllerRecord(node_id=1, epoch=1)
    await first.commit([Create(CONTROLLER_KEY, msgspec.json.encode(seat), before.session)])
    _, after = harness.member(epoch=2, previous_broker_epoch=1)
    await after.open()
    await after.join("a", 1, None)
    assert CONTROLLER_KEY not in harness.state.entries


@on_stage
async def test_the_controller_entry_of_another_broker_is_not_removed(harness: MembershipHarness) -> None:
    _, before = harness.member()
    await before.open()
    await before.join("a", 1, None)
    other = SimRegistry(harness.state)
    seat = ControllerRecord(node_id=2, epoch=1)
    await other.commit([Create(CONTROLLER_KEY, msgspec.json.encode(seat), await other.open_session())])
    _, after = harness.member(epoch=2, previous_broker_epoch=1)
    await after.open()
    await after.join("a", 1, None)
    assert CONTROLLER_KEY in harness.state.entries


@on_stage
async def test_a_node_id_in_use_by_another_broker_is_rejected_after_a_while(harness: MembershipHarness) -> None:
    _, other = harness.member(epoch=5)
    await other.open()
    await other.join("there", 1, None)
    _, member = harness.member(epoch=6, previous_broker_epoch=0)
    await member.open()
    with pytest.raises(NodeIdTaken, match="node id 1 is running at there:1; choose another --node-id"):
        await member.join("here", 2, None)
    assert (found := harness.listed()) is not None
    assert found.host == "there"


@on_stage
async def test_a_node_id_is_free_when_the_session_of_its_user_has_ended(harness: MembershipHarness) -> None:
    _, other = harness.member(epoch=5)
    await other.open()
    await other.join("there", 1, None)
    _, member = harness.member(epoch=6, previous_broker_epoch=0)
    await member.open()
    joining = harness.world.local.start(member.join("here", 2, None), "join")
    await asyncio.sleep(3)
    assert not joining.done()
    harness.state.expire(other.session)
    await joining
    assert (found := harness.listed()) is not None
    assert found.host == "here"


@on_stage
async def test_a_start_with_a_later_start_of_the_same_broker_gives_up_at_once(harness: MembershipHarness) -> None:
    _, successor = harness.member(epoch=3, previous_broker_epoch=2)
    await successor.open()
    await successor.join("new", 1, None)
    _, member = harness.member(epoch=2, previous_broker_epoch=1)
    await member.open()
    began = harness.world.clock.monotonic()
    with pytest.raises(NodeIdTaken):
        await member.join("old", 1, None)
    assert harness.world.clock.monotonic() - began < 1


@on_stage
async def test_an_entry_that_changes_during_its_replacement_is_read_again(harness: MembershipHarness) -> None:
    _, before = harness.member(epoch=1)
    await before.open()
    await before.join("old", 1, None)
    registry, member = harness.member(epoch=2, previous_broker_epoch=1)
    await member.open()
    commit = registry.commit

    async def let_another_write_first(operations: list[Create]) -> None:
        registry.commit = commit  # type: ignore[method-assign]
        entry = harness.state.entries[live_key(1)]
        draining = msgspec.structs.replace(decode_json(entry, BrokerRecord), is_draining=True)
        harness.state.commit([Set(entry.key, msgspec.json.encode(draining), entry.version)], None)
        await commit(operations)

    registry.commit = let_another_write_first  # type: ignore[method-assign, assignment]
    await member.join("new", 2, None)
    assert (found := harness.listed()) is not None
    assert (found.host, found.is_draining) == ("new", False)


@on_stage
async def test_a_replacement_session_is_valid_only_after_the_registry_was_read_again(
    harness: MembershipHarness,
) -> None:
    """Others may have been elected in the meantime."""
    _, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    harness.world.local.start(member.run(), "run")
    harness.may_refresh.clear()
    harness.state.expire(member.session)
    await asyncio.sleep(5)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, False, True)
    harness.may_refresh.set()
    await asyncio.sleep(1)
    assert (harness.refreshes, member.session_valid, member.session_expired) == (2, True, False)


@on_stage
async def test_an_unnoticed_session_timeout_counts_as_expired_until_the_registry_confirms_the_session(
    harness: MembershipHarness,
) -> None:
    harness.state.session_timeout_seconds = 3.0
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    harness.world.loop.skip(2.5)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, False, True)
    registry.disconnect()
    await asyncio.sleep(0)
    assert (member.state, member.session_expired) == (SessionState.DOUBTED, True)
    registry.reconnect()
    await asyncio.sleep(0.1)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, True, False)


@on_stage
async def test_a_running_broker_without_registry_has_an_invalid_but_not_expired_session(
    harness: MembershipHarness,
) -> None:
    harness.state.session_timeout_seconds = 3.0
    registry, member = harness.member()
    await member.open()
    await member.join("h", 9092, None)
    registry.disconnect()
    await asyncio.sleep(60)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.DOUBTED, False, False)
