"""The in-sync sets that a leader maintains: joins, departures, and commits while a change is pending."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.unit.broker.broker_requests import batch, produce, produce_request
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

from headrace.machines.controller.reassignment import begin_reassignment
from headrace.model.errors import NotEnoughReplicas, NotLeader, RequestTimedOut
from headrace.model.registry_records import PartitionRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, epoch_key
from headrace.registry.interface import Check, RegistryEntry, RegistryOperation, RegistryUnavailable, Set, is_beneath
from headrace.registry.topics import PARTITIONS_KEY, decode_partition, parse_partition_key


class Proposals:
    """The changes of in-sync sets that one broker proposes: with what they check, and what was written."""

    def __init__(self, simulated_broker: SimulatedClusterBroker) -> None:
        self.checked: list[list[str]] = []
        self.written: list[PartitionRecord] = []
        self.fails = False
        self.responds = True
        self._commit = simulated_broker.registry.commit
        simulated_broker.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        checks = [operation.key for operation in operations if isinstance(operation, Check)]
        sets = [operation for operation in operations if isinstance(operation, Set)]
        if not any(is_beneath(one.key, PARTITIONS_KEY) for one in sets) or CONTROLLER_EPOCH_KEY in checks:
            await self._commit(operations)
            return
        self.checked.append(checks)
        self.written += [decode_partition(RegistryEntry(one.key, one.value, 0)) for one in sets]
        assert all(parse_partition_key(one.key) for one in sets)
        if self.fails:
            raise RegistryUnavailable("The registry cannot be reached")
        await self._commit(operations)
        if not self.responds:
            raise RegistryUnavailable("The registry cannot be reached")


async def send_for(simulated_broker: SimulatedClusterBroker, milliseconds: int) -> int:
    request = produce_request({("t", 0): batch(b"a")}, timeout_ms=milliseconds)
    return int((await simulated_broker.send(request, 9)).responses[0].partition_responses[0].error_code)


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_lagging_follower_leaves_the_in_sync_set_and_rejoins_after_catching_up(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster.isolate(3)
    assert await produce(simulated_cluster[1], "t", b"b") == 1, "it waits until the lagging one is left out"
    assert simulated_cluster.record("t").isr == (1, 2)
    assert simulated_cluster.record("t").leader_epoch == 0, "that is no change of leader"
    simulated_cluster.heal()
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_caught_up_follower_does_not_lag_without_writes(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await asyncio.sleep(30)
    assert simulated_cluster.record("t").isr == (1, 2, 3)


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_disconnected_follower_stays_in_sync_without_writes(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(3)
    await asyncio.sleep(10)
    assert 3 in simulated_cluster.record("t").isr


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_replicas_that_leave_a_too_small_in_sync_set_stay_eligible(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", min_insync_replicas="2")
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster.isolate(1)
    assert await send_for(simulated_cluster[1], 10_000) == RequestTimedOut.code
    record = simulated_cluster.record("t")
    assert (record.isr, len(record.elr)) == ((1,), 1)
    assert simulated_cluster.replica(1, "t").high_watermark == 1, "nothing is committed by too few"
    assert await send_for(simulated_cluster[1], 1000) == NotEnoughReplicas.code, "refused before it is appended"
    assert simulated_cluster.replica(1, "t").log.end_offset == 2
    simulated_cluster.heal()
    await simulated_cluster.wait_until_in_sync("t")
    assert simulated_cluster.record("t").elr == ()
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").high_watermark == 2)


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_commits_wait_for_both_sets_until_the_outcome_of_a_proposal_is_known(
    simulated_cluster: SimulatedCluster,
) -> None:
    """To leave one out is not enough that it was proposed: it may not have come to pass (I6)."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    proposals = Proposals(simulated_cluster[1])
    proposals.fails = True
    simulated_cluster.isolate(3)
    assert await send_for(simulated_cluster[1], 10_000) == RequestTimedOut.code
    assert proposals.written[0].isr == (1, 2)
    assert (simulated_cluster.record("t").isr, simulated_cluster.replica(1, "t").high_watermark) == ((1, 2, 3), 1)
    proposals.fails = False
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").high_watermark == 2)
    assert simulated_cluster.record("t").isr == (1, 2)


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_an_unknown_outcome_is_read_from_the_registry(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    proposals = Proposals(simulated_cluster[1])
    proposals.responds = False
    simulated_cluster.isolate(3)
    assert await produce(simulated_cluster[1], "t", b"b") == 1
    assert simulated_cluster.record("t").isr == (1, 2)
    assert len(proposals.written) == 1, "it is not proposed again"


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_both_sets_count_while_the_outcome_cannot_be_read(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    proposals = Proposals(simulated_cluster[1])
    proposals.responds = False
    read = simulated_cluster[1].broker.catalogue.mirror.read
    simulated_cluster.isolate(3)

    async def cannot_be_read(_keys: object) -> None:
        raise RegistryUnavailable("The registry cannot be reached")

    simulated_cluster[1].broker.catalogue.mirror.read = cannot_be_read  # type: ignore[method-assign, assignment]
    assert await send_for(simulated_cluster[1], 10_000) == RequestTimedOut.code
    assert simulated_cluster.record("t").isr == (1, 2), "it was committed, and the leader does not know"
    in_sync = simulated_cluster.replica(1, "t").in_sync
    assert in_sync is not None
    assert (in_sync.maximal_isr, simulated_cluster.replica(1, "t").high_watermark) == (frozenset({1, 2, 3}), 1)
    simulated_cluster[1].broker.catalogue.mirror.read = read  # type: ignore[method-assign]
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(1, "t").high_watermark == 2)


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_commits_wait_for_a_replica_that_may_have_joined(simulated_cluster: SimulatedCluster) -> None:
    """If it has, it may be elected, and must have everything that is committed from then on."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    proposals = Proposals(simulated_cluster[1])
    proposals.responds = False
    mirror = simulated_cluster[1].broker.catalogue.mirror
    read = mirror.read
    await simulated_cluster.open(2)

    async def cannot_be_read(_keys: object) -> None:
        raise RegistryUnavailable("The registry cannot be reached")

    mirror.read = cannot_be_read  # type: ignore[method-assign, assignment]
    await simulated_cluster.wait_until_in_sync("t", 1, 2)
    simulated_cluster.isolate(1)
    assert await send_for(simulated_cluster[1], 10_000) == RequestTimedOut.code
    assert simulated_cluster.replica(1, "t").high_watermark == 1
    mirror.read = read  # type: ignore[method-assign]
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_joining_replica_must_have_the_broker_epoch_that_fetched(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    proposals = Proposals(simulated_cluster[1])
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    assert proposals.checked == [[epoch_key(2)]]


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_replica_restarted_since_its_fetch_does_not_join(simulated_cluster: SimulatedCluster) -> None:
    """It may have come back without its disk, and is in no set that it could strike itself out of."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await simulated_cluster.open(2)
    commit = simulated_cluster[1].registry.commit
    seen: list[Sequence[RegistryOperation]] = []

    async def restart_it_first(operations: Sequence[RegistryOperation]) -> None:
        if not seen and any(isinstance(one, Check) and one.key == epoch_key(2) for one in operations):
            seen.append(operations)
            simulated_cluster[2].kill()
            await simulated_cluster.replace_disk(2)
            await simulated_cluster.open(2)
            assert 2 not in simulated_cluster.record("t").isr
        await commit(operations)

    simulated_cluster[1].registry.commit = restart_it_first  # type: ignore[method-assign]
    await simulated_cluster.wait_until(lambda: bool(seen))
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert seen
    assert simulated_cluster.replica(2, "t").log.end_offset == 1


@in_simulated_cluster(replica_lag_time_max_ms="2000")
async def test_a_draining_replica_does_not_join(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    proposals = Proposals(simulated_cluster[1])
    proposals.fails = True
    await simulated_cluster.open(2)
    await simulated_cluster[2].host.start(
        simulated_cluster[2].broker.cluster.membership.begin_controlled_shutdown(), "leave"
    )
    proposals.fails = False
    await asyncio.sleep(5)
    assert simulated_cluster.record("t").isr == (1,)


@in_simulated_cluster(sessions_time_out=True, replica_lag_time_max_ms="2000")
async def test_a_leader_without_a_valid_session_proposes_nothing_and_commits_only_with_all_replicas(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Another leader may be elected by then, but only one that has every record committed here."""
    await simulated_cluster.create_topic("t", (3, 1, 2))
    await produce(simulated_cluster[3], "t", b"a")
    proposals = Proposals(simulated_cluster[3])
    simulated_cluster[3].registry.disconnect()
    await asyncio.sleep(0.01)
    assert not simulated_cluster[3].broker.cluster.membership.session_valid
    assert await send_for(simulated_cluster[3], 1000) == 0, "everybody still fetches"
    simulated_cluster.isolate(3)
    assert await send_for(simulated_cluster[3], 10_000) in (NotLeader.code, RequestTimedOut.code)
    assert proposals.written == []
    assert simulated_cluster.replica(3, "t").high_watermark == 2
    simulated_cluster.heal()
    simulated_cluster[3].registry.reconnect()
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")


@in_simulated_cluster()
async def test_followers_rejected_as_unknown_continue_when_the_leader_knows_them(
    simulated_cluster: SimulatedCluster,
) -> None:
    """A replica may learn of a reassignment before the leader does."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    partition = simulated_cluster.replica(1, "t")
    assert partition.in_sync is not None
    assert set(partition.in_sync.lag()) == {2}
    simulated_cluster[1].registry.disconnect()
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (1, 2, 3)))
    await asyncio.sleep(1)
    assert set(partition.in_sync.lag()) == {2}
    simulated_cluster[1].registry.reconnect()
    await simulated_cluster.wait_until_in_sync("t", 1, 2, 3)
