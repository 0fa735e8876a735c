"""The in-sync sets that a leader keeps: who joins, who leaves, and what is promised meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.unit.broker.asking import batch, produce, produce_request
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

from headrace.machines.reassignment import begin
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, epoch_key
from headrace.registry.interface import Check, Entry, Operation, RegistryUnavailable, Set, is_beneath
from headrace.registry.partitions import PARTITIONS_KEY, decode_partition, parse_partition_key

NOT_LEADER, TIMED_OUT, NOT_ENOUGH = 6, 7, 19


class Proposals:
    """The changes of in-sync sets that one broker proposes: with what they check, and what was written."""

    def __init__(self, house: ClusterHouse) -> None:
        self.checked: list[list[str]] = []
        self.written: list[PartitionRecord] = []
        self.fails = False
        self.answers = True
        self._commit = house.registry.commit
        house.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[Operation]) -> None:
        checks = [operation.key for operation in operations if isinstance(operation, Check)]
        sets = [operation for operation in operations if isinstance(operation, Set)]
        if not any(is_beneath(one.key, PARTITIONS_KEY) for one in sets) or CONTROLLER_EPOCH_KEY in checks:
            await self._commit(operations)
            return
        self.checked.append(checks)
        self.written += [decode_partition(Entry(one.key, one.value, 0)) for one in sets]
        assert all(parse_partition_key(one.key) for one in sets)
        if self.fails:
            raise RegistryUnavailable("The registry cannot be reached")
        await self._commit(operations)
        if not self.answers:
            raise RegistryUnavailable("The registry cannot be reached")


async def send_for(house: ClusterHouse, milliseconds: int) -> int:
    request = produce_request({("t", 0): batch(b"a")}, timeout_ms=milliseconds)
    return int((await house.ask(request, 9)).responses[0].partition_responses[0].error_code)


@in_town(replica_lag_time_max_ms="2000")
async def test_who_lags_for_too_long_leaves_and_who_has_caught_up_joins_again(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    town.isolate(3)
    assert await produce(town[1], "t", b"b") == 1, "it waits until the lagging one is left out"
    assert town.record("t").isr == (1, 2)
    assert town.record("t").leader_epoch == 0, "that is no change of leader"
    town.heal()
    await town.until_in_sync("t")
    await town.until_alike("t")


@in_town(replica_lag_time_max_ms="2000")
async def test_who_has_everything_does_not_lag_however_long_nothing_is_written(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await asyncio.sleep(30)
    assert town.record("t").isr == (1, 2, 3)


@in_town(replica_lag_time_max_ms="2000")
async def test_who_is_cut_off_while_nothing_is_written_is_not_missed(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(3)
    await asyncio.sleep(10)
    assert 3 in town.record("t").isr


@in_town(replica_lag_time_max_ms="2000")
async def test_those_that_leave_a_set_that_is_too_small_to_commit_stay_eligible(town: Town) -> None:
    await town.make_topic("t", min_insync_replicas="2")
    await produce(town[1], "t", b"a")
    town.isolate(1)
    assert await send_for(town[1], 10_000) == TIMED_OUT
    record = town.record("t")
    assert (record.isr, len(record.elr)) == ((1,), 1)
    assert town.replica(1, "t").high_watermark == 1, "nothing is committed by too few"
    assert await send_for(town[1], 1000) == NOT_ENOUGH, "refused before it is appended"
    assert town.replica(1, "t").log.end_offset == 2
    town.heal()
    await town.until_in_sync("t")
    assert town.record("t").elr == ()
    await town.until(lambda: town.replica(1, "t").high_watermark == 2)


@in_town(replica_lag_time_max_ms="2000")
async def test_from_the_proposal_until_its_outcome_is_known_both_sets_are_waited_for(town: Town) -> None:
    """To leave one out is not enough that it was proposed: it may not have come to pass (I6)."""
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    proposals = Proposals(town[1])
    proposals.fails = True
    town.isolate(3)
    assert await send_for(town[1], 10_000) == TIMED_OUT
    assert proposals.written[0].isr == (1, 2)
    assert (town.record("t").isr, town.replica(1, "t").high_watermark) == ((1, 2, 3), 1)
    proposals.fails = False
    await town.until(lambda: town.replica(1, "t").high_watermark == 2)
    assert town.record("t").isr == (1, 2)


@in_town(replica_lag_time_max_ms="2000")
async def test_an_outcome_that_is_unknown_is_read_from_the_registry(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    proposals = Proposals(town[1])
    proposals.answers = False
    town.isolate(3)
    assert await produce(town[1], "t", b"b") == 1
    assert town.record("t").isr == (1, 2)
    assert len(proposals.written) == 1, "it is not proposed again"


@in_town(replica_lag_time_max_ms="2000")
async def test_while_the_outcome_cannot_be_read_either_both_sets_count(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    proposals = Proposals(town[1])
    proposals.answers = False
    read = town[1].broker.catalogue.mirror.read
    town.isolate(3)

    async def cannot_be_read(_keys: object) -> None:
        raise RegistryUnavailable("The registry cannot be reached")

    town[1].broker.catalogue.mirror.read = cannot_be_read  # type: ignore[method-assign, assignment]
    assert await send_for(town[1], 10_000) == TIMED_OUT
    assert town.record("t").isr == (1, 2), "it came to pass, and the leader does not know"
    in_sync = town.replica(1, "t").in_sync
    assert in_sync is not None
    assert (in_sync.maximal, town.replica(1, "t").high_watermark) == (frozenset({1, 2, 3}), 1)
    town[1].broker.catalogue.mirror.read = read  # type: ignore[method-assign]
    await town.until(lambda: town.replica(1, "t").high_watermark == 2)


@in_town(replica_lag_time_max_ms="2000")
async def test_one_that_may_have_joined_is_waited_for_until_that_is_known(town: Town) -> None:
    """If it has, it may be elected, and must have everything that is committed from then on."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    proposals = Proposals(town[1])
    proposals.answers = False
    mirror = town[1].broker.catalogue.mirror
    read = mirror.read
    await town.open(2)

    async def cannot_be_read(_keys: object) -> None:
        raise RegistryUnavailable("The registry cannot be reached")

    mirror.read = cannot_be_read  # type: ignore[method-assign, assignment]
    await town.until_in_sync("t", 1, 2)
    town.isolate(1)
    assert await send_for(town[1], 10_000) == TIMED_OUT
    assert town.replica(1, "t").high_watermark == 1
    mirror.read = read  # type: ignore[method-assign]
    town.heal()
    await town.until_alike("t")


@in_town(replica_lag_time_max_ms="2000")
async def test_who_joins_is_checked_to_be_the_start_that_has_fetched(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    proposals = Proposals(town[1])
    await town.open(2)
    await town.until_in_sync("t")
    assert proposals.checked == [[epoch_key(2)]]


@in_town(replica_lag_time_max_ms="2000")
async def test_one_that_was_started_again_since_it_fetched_does_not_join(town: Town) -> None:
    """It may have come back without its disk, and is in no set that it could strike itself out of."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    await town.open(2)
    commit = town[1].registry.commit
    seen: list[Sequence[Operation]] = []

    async def restart_it_first(operations: Sequence[Operation]) -> None:
        if not seen and any(isinstance(one, Check) and one.key == epoch_key(2) for one in operations):
            seen.append(operations)
            town[2].kill()
            await town.replace_disk(2)
            await town.open(2)
            assert 2 not in town.record("t").isr
        await commit(operations)

    town[1].registry.commit = restart_it_first  # type: ignore[method-assign]
    await town.until(lambda: bool(seen))
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert seen
    assert town.replica(2, "t").log.end_offset == 1


@in_town(replica_lag_time_max_ms="2000")
async def test_one_that_is_about_to_go_does_not_join(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[2].kill()
    await town.until_in_sync("t", 1)
    proposals = Proposals(town[1])
    proposals.fails = True
    await town.open(2)
    await town[2].host.start(town[2].broker.cluster.membership.begin_to_leave(), "leave")
    proposals.fails = False
    await asyncio.sleep(5)
    assert town.record("t").isr == (1,)


@in_town(sessions_time_out=True, replica_lag_time_max_ms="2000")
async def test_a_leader_in_doubt_of_its_session_proposes_nothing_and_commits_only_with_all(town: Town) -> None:
    """Others may have elected another by then, but not without one who has everything that is committed here."""
    await town.make_topic("t", (3, 1, 2))
    await produce(town[3], "t", b"a")
    proposals = Proposals(town[3])
    town[3].registry.disconnect()
    await asyncio.sleep(0.01)
    assert not town[3].broker.cluster.membership.session_valid
    assert await send_for(town[3], 1000) == 0, "everybody still fetches"
    town.isolate(3)
    assert await send_for(town[3], 10_000) in (NOT_LEADER, TIMED_OUT)
    assert proposals.written == []
    assert town.replica(3, "t").high_watermark == 2
    town.heal()
    town[3].registry.reconnect()
    await town.until_in_sync("t")
    await town.until_alike("t")


@in_town()
async def test_followers_that_are_told_to_be_unknown_go_on_when_the_leader_knows_them(town: Town) -> None:
    """A replica may hear of a move of its partition before the leader does."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    partition = town.replica(1, "t")
    assert partition.in_sync is not None
    assert set(partition.in_sync.lag()) == {2}
    town[1].registry.disconnect()
    await town.change("t", lambda record: begin(record, (1, 2, 3)))
    await asyncio.sleep(1)
    assert set(partition.in_sync.lag()) == {2}
    town[1].registry.reconnect()
    await town.until_in_sync("t", 1, 2, 3)
