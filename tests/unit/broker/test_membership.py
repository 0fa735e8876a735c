"""A broker's number, its session, and its name among those that are up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headrace.broker.membership import Membership, NodeIdTaken, Start, WrongFolder, confirm_start, number_start
from headrace.model.broker_record import BrokerRecord, ControllerRecord
from headrace.registry.brokers import CONTROLLER_KEY, decode_broker, epoch_key, live_key
from headrace.registry.interface import Create, RegistryUnavailable, SessionLost, SessionState, Set
from headrace.testkit.disk import SimDisk
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.registry import SimRegistry, SimRegistryState
from headrace.testkit.world import World


class Stage:
    """One node id in a world, and the registry that all share."""

    def __init__(self) -> None:
        self.world = World(seed=1)
        self.state = SimRegistryState()
        self.disk = self.world.disk
        self.disk.make_directory("/data")
        self.refreshes = 0
        self.may_refresh = asyncio.Event()
        self.may_refresh.set()

    async def number(self, disk: SimDisk | None = None, node_id: int = 1) -> Start:
        return await number_start(
            SimRegistry(self.state), disk or self.disk, self.world.clock, "/data", node_id, SeededEntropy(1)
        )

    def member(self, epoch: int = 1, epoch_before: int = 0) -> tuple[SimRegistry, Membership]:
        registry = SimRegistry(self.state)
        return registry, Membership(
            registry, self.world.clock, 1, Start("c", epoch, epoch_before, has_all=True), self.refresh
        )

    async def refresh(self) -> None:
        """How membership reads the registry again; here it holds nothing else."""
        await self.may_refresh.wait()
        self.refreshes += 1

    def listed(self) -> BrokerRecord | None:
        entry = self.state.entries.get(live_key(1))
        return None if entry is None else decode_broker(entry)


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        stage = Stage()
        stage.world.run(test(stage))  # type: ignore[arg-type]
        stage.world.close()

    run.__name__ = test.__name__
    return run


# Its number


@on_stage
async def test_every_start_has_a_number_of_its_own_and_the_folder_knows_the_last(stage: Stage) -> None:
    starts = [await stage.number() for _ in range(3)]
    assert [(start.epoch, start.epoch_before, start.has_all) for start in starts] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, True),
    ]
    assert len({start.cluster_id for start in starts}) == 1


@on_stage
async def test_an_empty_folder_in_the_place_of_a_used_one_lacks_what_was_acknowledged(stage: Stage) -> None:
    await stage.number()
    stage.disk.remove("/data/broker")
    start = await stage.number()
    assert (start.epoch, start.has_all) == (2, False)


@on_stage
async def test_so_does_an_old_copy_of_a_folder(stage: Stage) -> None:
    await stage.number()
    old = stage.disk.read("/data/broker")
    await stage.number()
    stage.disk.write_atomically("/data/broker", old)
    start = await stage.number()
    assert (start.epoch, start.epoch_before, start.has_all) == (3, 1, False)


@on_stage
async def test_a_folder_that_lacks_something_is_not_trusted_until_the_broker_has_said_so(stage: Stage) -> None:
    """A crash may come before it has: the next start must not take the empty folder for the one that was used last."""
    await stage.number()
    stage.disk.remove("/data/broker")
    assert not (await stage.number()).has_all
    start = await stage.number()
    assert not start.has_all
    await confirm_start(stage.disk, "/data", 1, start)
    assert (await stage.number()).has_all


@on_stage
async def test_a_crash_between_folder_and_registry_takes_nothing_from_a_folder(stage: Stage) -> None:
    await stage.number()
    registry = SimRegistry(stage.state)
    registry.commit = _unavailable  # type: ignore[method-assign, assignment]
    with pytest.raises(RegistryUnavailable):
        await number_start(registry, stage.disk, stage.world.clock, "/data", 1, SeededEntropy(1))
    start = await stage.number()
    assert (start.epoch, start.has_all) == (3, True)


@on_stage
async def test_another_folder_takes_no_number_while_the_broker_of_that_id_is_up(stage: Stage) -> None:
    """Else the folder of the one that is up would be behind, and what it holds be distrusted."""
    await stage.number()
    _, member = stage.member()
    await member.open()
    await member.join("one", 9092, None)
    empty = SimDisk(2)
    empty.make_directory("/data")
    with pytest.raises(NodeIdTaken, match="is running at one:9092"):
        await stage.number(empty)
    assert (await stage.number()).has_all


@on_stage
async def test_an_empty_folder_waits_for_the_session_of_the_one_that_was_lost(stage: Stage) -> None:
    await stage.number()
    registry, member = stage.member()
    await member.open()
    await member.join("one", 9092, None)
    asyncio.get_running_loop().call_later(5, registry.crash)
    stage.disk.remove("/data/broker")
    start = await stage.number()
    assert (start.epoch, start.has_all) == (2, False)


@on_stage
async def test_of_two_that_start_at_the_same_time_one_has_less(stage: Stage) -> None:
    """Two folders under one node id: whichever is second was not used last."""
    await stage.number()
    copy = SimDisk(2)
    copy.make_directory("/data")
    copy.write_atomically("/data/broker", stage.disk.read("/data/broker"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.number(disk)) for disk in (stage.disk, copy)]
    starts = [task.result() for task in tasks]
    assert {start.epoch for start in starts} == {2, 3}
    assert sorted(start.has_all for start in starts) == [False, True]


@on_stage
async def test_the_folder_of_another_cluster_or_broker_is_refused_and_left_as_it_is(stage: Stage) -> None:
    await stage.number()
    before = stage.disk.read("/data/broker")
    with pytest.raises(WrongFolder, match="belongs to broker 1, not 2"):
        await stage.number(node_id=2)
    stage.state = SimRegistryState()
    with pytest.raises(WrongFolder, match="belongs to cluster"):
        await number_start(SimRegistry(stage.state), stage.disk, stage.world.clock, "/data", 1, SeededEntropy(2))
    assert stage.disk.read("/data/broker") == before
    assert epoch_key(1) not in stage.state.entries


async def _unavailable(_operations: object) -> None:
    raise RegistryUnavailable("The registry cannot be reached")


# Its session


@on_stage
async def test_it_is_listed_from_join_to_leave(stage: Stage) -> None:
    _, member = stage.member()
    await member.open()
    assert (member.session_valid, stage.listed()) == (True, None)
    await member.join("h", 9092, "r")
    assert stage.listed() == BrokerRecord(node_id=1, epoch=1, host="h", port=9092, rack="r")
    await member.leave()
    assert stage.listed() is None


@on_stage
async def test_it_says_that_it_is_about_to_go_and_goes_on_saying_so_in_a_new_session(stage: Stage) -> None:
    _, member = stage.member()
    await member.open()
    await member.begin_to_leave()  # not listed yet: there is nothing to say
    await member.join("h", 9092, None)
    await member.begin_to_leave()
    assert (found := stage.listed()) is not None
    assert found.is_draining
    stage.world.local.start(member.run(), "run")
    stage.state.expire(member.session)
    await asyncio.sleep(1)
    assert (found := stage.listed()) is not None
    assert found.is_draining


@on_stage
async def test_a_lost_session_is_replaced_under_the_same_number(stage: Stage) -> None:
    _, member = stage.member()
    states: list[SessionState] = []
    member.on_state.append(states.append)
    await member.open()
    await member.join("h", 9092, None)
    stage.world.local.start(member.run(), "run")
    first = member.session
    stage.state.expire(first)
    assert stage.listed() is None
    await asyncio.sleep(1)
    assert member.session_valid
    assert member.session != first
    assert (found := stage.listed()) is not None
    assert found.epoch == 1
    assert states == [SessionState.HELD, SessionState.DOUBTED, SessionState.LOST, SessionState.HELD]


@on_stage
async def test_it_is_in_doubt_while_it_hears_nothing_and_certain_when_it_does_again(stage: Stage) -> None:
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    stage.world.local.start(member.run(), "run")
    first = member.session
    registry.disconnect()
    await asyncio.sleep(0.1)
    assert not member.session_valid
    registry.reconnect()
    await asyncio.sleep(0.1)
    assert member.session_valid
    assert member.session == first


@on_stage
async def test_a_session_that_is_lost_again_while_it_registers_is_replaced_again(stage: Stage) -> None:
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    running = stage.world.local.start(member.run(), "run")
    commit, losses = registry.commit, 3

    async def lose_then_commit(operations: list[Create]) -> None:
        nonlocal losses
        if losses:
            losses -= 1
            stage.state.expire(member.session)
            await asyncio.sleep(0)
        await commit(operations)

    registry.commit = lose_then_commit  # type: ignore[method-assign, assignment]
    stage.state.expire(member.session)
    await asyncio.sleep(5)
    assert (losses, member.session_valid, running.done()) == (0, True, False)
    assert stage.listed() is not None


@on_stage
async def test_a_registry_that_cannot_be_read_while_it_registers_is_asked_again_in_the_same_session(
    stage: Stage,
) -> None:
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    running = stage.world.local.start(member.run(), "run")
    get, failures = registry.get, 3

    async def fail_then_get(key: str) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise RegistryUnavailable("The registry cannot be reached")
        return await get(key)

    registry.get = fail_then_get  # type: ignore[method-assign, assignment]
    stage.state.expire(member.session)
    await asyncio.sleep(5)
    assert (failures, member.session_valid, running.done()) == (0, True, False)
    assert stage.listed() is not None


@on_stage
async def test_a_session_that_is_lost_before_it_joins_is_replaced_too(stage: Stage) -> None:
    """Recovery of the logs comes in between and may take long."""
    _, member = stage.member()
    await member.open()
    stage.state.expire(member.session)
    await asyncio.sleep(0.1)
    await member.join("h", 9092, None)
    assert member.session_valid
    assert stage.listed() is not None


@on_stage
async def test_it_gives_up_when_the_registry_stays_away(stage: Stage) -> None:
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    running = stage.world.local.start(member.run(), "run")
    stage.state.expire(member.session)
    await asyncio.sleep(0)
    registry.unavailable = True
    await asyncio.sleep(30)
    assert not running.done()
    await asyncio.sleep(60)
    assert isinstance(running.exception(), RegistryUnavailable | SessionLost)


# Its name


@on_stage
async def test_its_own_entry_of_the_start_before_is_replaced_at_once(stage: Stage) -> None:
    """That process is dead, for it would hold the folder; its session may live on for a while."""
    _, before = stage.member(epoch=1)
    await before.open()
    await before.join("old", 1, None)
    _, member = stage.member(epoch=2, epoch_before=1)
    await member.open()
    await member.join("new", 2, None)
    assert (found := stage.listed()) is not None
    assert (found.epoch, found.host) == (2, "new")
    stage.state.expire(before.session)
    assert stage.listed() is not None, "the entry belongs to the new session"


@on_stage
async def test_a_controller_that_starts_again_leaves_no_empty_seat_behind(stage: Stage) -> None:
    first, before = stage.member()
    await before.open()
    await before.join("a", 1, None)
    seat = ControllerRecord(node_id=1, epoch=1)
    await first.commit([Create(CONTROLLER_KEY, msgspec.json.encode(seat), before.session)])
    _, after = stage.member(epoch=2, epoch_before=1)
    await after.open()
    await after.join("a", 1, None)
    assert CONTROLLER_KEY not in stage.state.entries


@on_stage
async def test_the_seat_of_another_controller_stays_taken(stage: Stage) -> None:
    _, before = stage.member()
    await before.open()
    await before.join("a", 1, None)
    other = SimRegistry(stage.state)
    seat = ControllerRecord(node_id=2, epoch=1)
    await other.commit([Create(CONTROLLER_KEY, msgspec.json.encode(seat), await other.open_session())])
    _, after = stage.member(epoch=2, epoch_before=1)
    await after.open()
    await after.join("a", 1, None)
    assert CONTROLLER_KEY in stage.state.entries


@on_stage
async def test_a_node_id_that_another_broker_uses_is_refused_after_a_while(stage: Stage) -> None:
    _, other = stage.member(epoch=5)
    await other.open()
    await other.join("there", 1, None)
    _, member = stage.member(epoch=6, epoch_before=0)
    await member.open()
    with pytest.raises(NodeIdTaken, match="node id 1 is running at there:1; choose another --node-id"):
        await member.join("here", 2, None)
    assert (found := stage.listed()) is not None
    assert found.host == "there"


@on_stage
async def test_a_node_id_is_free_when_the_session_of_its_user_has_ended(stage: Stage) -> None:
    _, other = stage.member(epoch=5)
    await other.open()
    await other.join("there", 1, None)
    _, member = stage.member(epoch=6, epoch_before=0)
    await member.open()
    joining = stage.world.local.start(member.join("here", 2, None), "join")
    await asyncio.sleep(3)
    assert not joining.done()
    stage.state.expire(other.session)
    await joining
    assert (found := stage.listed()) is not None
    assert found.host == "here"


@on_stage
async def test_a_start_that_has_a_successor_gives_up_at_once(stage: Stage) -> None:
    _, successor = stage.member(epoch=3, epoch_before=2)
    await successor.open()
    await successor.join("new", 1, None)
    _, member = stage.member(epoch=2, epoch_before=1)
    await member.open()
    began = stage.world.clock.monotonic()
    with pytest.raises(NodeIdTaken):
        await member.join("old", 1, None)
    assert stage.world.clock.monotonic() - began < 1


@on_stage
async def test_an_entry_that_changes_while_it_is_replaced_is_read_again(stage: Stage) -> None:
    _, before = stage.member(epoch=1)
    await before.open()
    await before.join("old", 1, None)
    registry, member = stage.member(epoch=2, epoch_before=1)
    await member.open()
    commit = registry.commit

    async def let_another_write_first(operations: list[Create]) -> None:
        registry.commit = commit  # type: ignore[method-assign]
        entry = stage.state.entries[live_key(1)]
        draining = msgspec.structs.replace(decode_broker(entry), is_draining=True)
        stage.state.commit([Set(entry.key, msgspec.json.encode(draining), entry.version)], None)
        await commit(operations)

    registry.commit = let_another_write_first  # type: ignore[method-assign, assignment]
    await member.join("new", 2, None)
    assert (found := stage.listed()) is not None
    assert (found.host, found.is_draining) == ("new", False)


@on_stage
async def test_a_session_that_replaces_a_lost_one_is_not_relied_on_before_the_registry_was_read_again(
    stage: Stage,
) -> None:
    """Others may have been elected in the meantime."""
    _, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    stage.world.local.start(member.run(), "run")
    stage.may_refresh.clear()
    stage.state.expire(member.session)
    await asyncio.sleep(5)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, False, True)
    stage.may_refresh.set()
    await asyncio.sleep(1)
    assert (stage.refreshes, member.session_valid, member.session_expired) == (2, True, False)


@on_stage
async def test_a_session_that_ran_out_before_that_was_noticed_has_expired_until_it_is_confirmed(stage: Stage) -> None:
    stage.state.session_timeout_seconds = 3.0
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    stage.world.loop.skip(2.5)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, False, True)
    registry.disconnect()
    await asyncio.sleep(0)
    assert (member.state, member.session_expired) == (SessionState.DOUBTED, True)
    registry.reconnect()
    await asyncio.sleep(0.1)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.HELD, True, False)


@on_stage
async def test_a_broker_that_is_awake_when_the_registry_goes_away_is_in_doubt_and_has_not_expired(stage: Stage) -> None:
    stage.state.session_timeout_seconds = 3.0
    registry, member = stage.member()
    await member.open()
    await member.join("h", 9092, None)
    registry.disconnect()
    await asyncio.sleep(60)
    assert (member.state, member.session_valid, member.session_expired) == (SessionState.DOUBTED, False, False)
