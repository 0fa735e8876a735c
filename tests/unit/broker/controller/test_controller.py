"""The controller: its election, its decisions, and that it decides nothing once it may have been replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

from headrace.machines.controller.reassignment import begin_reassignment
from headrace.model.names import CONSUMER_OFFSETS
from headrace.model.registry_records import ControllerRecord, PartitionRecord, TopicRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, CONTROLLER_KEY, drain, live_key
from headrace.registry.interface import (
    Check,
    Create,
    OutcomeUnknown,
    RegistryEntry,
    RegistryOperation,
    Set,
    decode_json,
)
from headrace.registry.topics import (
    PARTITIONS_KEY,
    create_operations,
    encode_partition,
    partition_key,
    split_into_commits,
)
from headrace.testkit.registry import SimRegistry

PLACE = PartitionRecord(replicas=(1, 2), isr=(1, 2), leader=1, leader_broker_epoch=1)


def controller(simulated_cluster: SimulatedCluster) -> SimulatedClusterBroker:
    return simulated_cluster[
        decode_json(simulated_cluster.registry_ensemble.entries[CONTROLLER_KEY], ControllerRecord).node_id
    ]


async def until_elected(
    simulated_cluster: SimulatedCluster, *, but: SimulatedClusterBroker | None = None
) -> SimulatedClusterBroker:
    def is_elected() -> bool:
        return (
            CONTROLLER_KEY in simulated_cluster.registry_ensemble.entries
            and controller(simulated_cluster) is not but
            and controller(simulated_cluster).broker.cluster.controller.is_active_controller
        )

    await simulated_cluster.wait_until(is_elected)
    return controller(simulated_cluster)


def epoch(simulated_cluster: SimulatedCluster) -> int:
    return int(simulated_cluster.registry_ensemble.entries[CONTROLLER_EPOCH_KEY].value)


def written(commits: list[Sequence[RegistryOperation]]) -> list[Sequence[RegistryOperation]]:
    return [one for one in commits if any(isinstance(operation, Set) for operation in one)]


class Watched:
    """What a broker commits as the controller. While `holds` is set, it does not arrive."""

    def __init__(self, simulated_broker: SimulatedClusterBroker) -> None:
        self.commits: list[Sequence[RegistryOperation]] = []
        self.outcomes: list[Exception | None] = []
        self.arrives = asyncio.Event()
        self.arrives.set()
        self._commit = simulated_broker.registry.commit
        simulated_broker.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        if not any(isinstance(one, Check) and one.key == CONTROLLER_EPOCH_KEY for one in operations):
            await self._commit(operations)
            return
        self.commits.append(operations)
        await self.arrives.wait()
        try:
            await self._commit(operations)
        except Exception as error:
            self.outcomes.append(error)
            raise
        self.outcomes.append(None)


# Election of the controller


@in_simulated_cluster()
async def test_all_brokers_know_the_one_controller(simulated_cluster: SimulatedCluster) -> None:
    await until_elected(simulated_cluster)
    assert [
        simulated_broker.broker.cluster.controller.is_active_controller for simulated_broker in simulated_cluster.up
    ].count(True) == 1
    assert len({simulated_broker.broker.catalogue.controller for simulated_broker in simulated_cluster.up}) == 1
    assert epoch(simulated_cluster) == 1


@in_simulated_cluster()
async def test_a_new_controller_is_elected_in_a_new_epoch(simulated_cluster: SimulatedCluster) -> None:
    for number in (1, 2):
        first = await until_elected(simulated_cluster)
        assert epoch(simulated_cluster) == number
        first.kill()
        await until_elected(simulated_cluster, but=first)
    assert epoch(simulated_cluster) == 3


@in_simulated_cluster(sessions_time_out=True)
async def test_a_controller_decides_nothing_while_its_session_is_invalid_and_continues_afterwards(
    simulated_cluster: SimulatedCluster,
) -> None:
    first = await until_elected(simulated_cluster)
    await simulated_cluster.create_topic("t", (2, 3), (3, 2), by=1)
    watched = Watched(first)
    first.registry.disconnect()
    await asyncio.sleep(0.01)
    assert not first.broker.cluster.controller.is_active_controller
    first.broker.catalogue.apply(live_key(2), None)  # what it believes is not the question
    await asyncio.sleep(0.5)
    assert watched.commits == []
    simulated_cluster[2].kill()
    await asyncio.sleep(0.5)
    first.registry.reconnect()
    await simulated_cluster.wait_for_leader("t", 3)
    assert (epoch(simulated_cluster), controller(simulated_cluster)) == (1, first), "it has kept its seat"


@in_simulated_cluster(sessions_time_out=True)
async def test_a_controller_whose_session_expired_steps_down(simulated_cluster: SimulatedCluster) -> None:
    first = await until_elected(simulated_cluster)
    first.registry.disconnect(silently=True)
    second = await until_elected(simulated_cluster, but=first)
    assert epoch(simulated_cluster) == 2
    first.registry.reconnect()
    await asyncio.sleep(1)
    assert (controller(simulated_cluster), first.broker.cluster.controller.is_active_controller) == (second, False)
    assert first.broker.cluster.membership.session_valid
    await simulated_cluster.create_topic("t", (first.node_id, second.node_id))
    assert await produce(first, "t", b"a") == 0


@in_simulated_cluster()
async def test_commits_of_a_replaced_controller_have_no_effect(simulated_cluster: SimulatedCluster) -> None:
    """Its session may even be replaced by then: the epoch is what stops it."""
    first = await until_elected(simulated_cluster)
    others = [simulated_broker for simulated_broker in simulated_cluster.up if simulated_broker is not first]
    await simulated_cluster.create_topic("t", (others[0].node_id, others[1].node_id))
    watched = Watched(first)
    watched.arrives.clear()
    others[0].kill()
    await simulated_cluster.wait_until(lambda: bool(watched.commits))
    simulated_cluster.expire(first.node_id)
    second = await until_elected(simulated_cluster, but=first)
    await simulated_cluster.wait_for_leader("t", others[1].node_id)
    record = simulated_cluster.record("t")
    assert (second, record.leader_epoch) == (others[1], 1)
    watched.arrives.set()
    await asyncio.sleep(1)
    assert watched.outcomes[0] is not None
    assert simulated_cluster.record("t") == record


@in_simulated_cluster()
async def test_an_election_with_an_unknown_outcome_is_read_from_the_controller_entry(
    simulated_cluster: SimulatedCluster,
) -> None:
    first = await until_elected(simulated_cluster)
    for simulated_broker in simulated_cluster.up:
        if simulated_broker is not first:
            _answer_nothing(simulated_broker)
    first.kill()
    second = await until_elected(simulated_cluster, but=first)
    assert epoch(simulated_cluster) == 2
    assert second.broker.cluster.controller.is_active_controller


def _answer_nothing(simulated_broker: SimulatedClusterBroker) -> None:
    commit = simulated_broker.registry.commit

    async def lose_the_answer(operations: Sequence[RegistryOperation]) -> None:
        await commit(operations)
        if any(isinstance(one, Create) and one.key == CONTROLLER_KEY for one in operations):
            raise OutcomeUnknown("The connection was lost under a commit")

    simulated_broker.registry.commit = lose_the_answer  # type: ignore[method-assign]


# What it decides


@in_simulated_cluster()
async def test_a_restarted_broker_is_elected_again_even_if_its_stop_went_unnoticed(
    simulated_cluster: SimulatedCluster,
) -> None:
    """KIP-380: it may have lost what it had in memory, and its followers must know."""
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[1].kill()
    await simulated_cluster.open(1)
    leader = await simulated_cluster.wait_for_leader("t")
    assert simulated_cluster.record("t").leader_epoch > 0
    assert await produce(leader, "t", b"b") == 1


@in_simulated_cluster(1)
async def test_a_restarted_single_broker_is_elected_again(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1,))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[1].kill()
    await simulated_cluster.open(1)
    record = simulated_cluster.record("t")
    assert (record.leader, record.leader_epoch, record.leader_broker_epoch) == (1, 1, 2)


@in_simulated_cluster()
async def test_a_dead_broker_leaves_in_sync_sets_except_those_where_it_is_the_last(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("both", (3, 2))
    await simulated_cluster.create_topic("alone", (3,))
    simulated_cluster[3].kill()
    await simulated_cluster.wait_for_leader("both", 2)
    record = simulated_cluster.record("both")
    assert (record.isr, record.elr) == ((2,), ())
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("alone").leader == -1)
    record = simulated_cluster.record("alone")
    assert (record.isr, record.leader_epoch) == ((3,), 1)
    await simulated_cluster.open(3)
    await simulated_cluster.wait_for_leader("alone", 3)
    assert simulated_cluster.record("alone").leader_epoch == 2


@in_simulated_cluster()
async def test_replicas_that_left_a_too_small_in_sync_set_remain_eligible_leaders(
    simulated_cluster: SimulatedCluster,
) -> None:
    """KIP-966: they have everything that is committed."""
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="2")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").elr == (2,))
    simulated_cluster[1].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").leader == -1)
    assert (simulated_cluster.record("t").isr, simulated_cluster.record("t").elr) == ((1,), (2,))
    await simulated_cluster.open(2)
    await simulated_cluster.wait_for_leader("t", 2)
    record = simulated_cluster.record("t")
    assert (record.isr, record.elr, record.unclean_epoch) == ((2,), (1,), -1)
    assert simulated_cluster.replica(2, "t").log.end_offset == 1
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until_in_sync("t")
    await simulated_cluster.wait_until_identical("t")
    assert simulated_cluster.record("t").elr == ()
    assert await read_all(simulated_cluster[2], "t") == [b"a"]


@in_simulated_cluster(leader_imbalance_check_interval_seconds="5")
async def test_leadership_returns_to_the_preferred_replica(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (2, 3))
    simulated_cluster[2].kill()
    await simulated_cluster.wait_for_leader("t", 3)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_for_leader("t", 2)
    assert set(simulated_cluster.record("t").isr) == {2, 3}


@in_simulated_cluster(leader_imbalance_check_interval_seconds="5", auto_leader_rebalance_enable="false")
async def test_unless_that_is_not_wanted(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (2, 3))
    simulated_cluster[2].kill()
    await simulated_cluster.wait_for_leader("t", 3)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    await asyncio.sleep(20)
    assert simulated_cluster.leader("t") is simulated_cluster[3]


@in_simulated_cluster()
async def test_one_decision_based_on_an_outdated_record_does_not_block_the_others(
    simulated_cluster: SimulatedCluster,
) -> None:
    first = await until_elected(simulated_cluster)
    others = [simulated_broker.node_id for simulated_broker in simulated_cluster.up if simulated_broker is not first]
    await simulated_cluster.create_topic("t", *[tuple(others)] * 5)
    watched = Watched(first)
    watched.arrives.clear()
    simulated_cluster[others[0]].kill()
    await simulated_cluster.wait_until(lambda: bool(watched.commits))
    assert len(watched.commits[0]) == 6
    await simulated_cluster.change_partition(
        "t", lambda record: replace(record, leader_epoch=record.leader_epoch + 1, leader=-1), index=2
    )
    watched.arrives.set()
    for index in range(5):
        await simulated_cluster.wait_for_leader("t", others[1], index)
    assert [simulated_cluster.record("t", index).leader_epoch for index in range(5)] == [1, 1, 2, 1, 1]


# Moving


@in_simulated_cluster(4)
async def test_a_reassignment_continues_when_the_new_replica_restarts(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster[4].kill()
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (1, 4)))
    await asyncio.sleep(5)
    record = simulated_cluster.record("t")
    assert (record.replicas, record.isr, record.removing) == ((1, 4, 2), (1, 2), (2,)), "nothing is dropped early"
    await simulated_cluster.open(4)
    await simulated_cluster.wait_until(lambda: not simulated_cluster.record("t").adding)
    assert (simulated_cluster.record("t").replicas, set(simulated_cluster.record("t").isr)) == ((1, 4), {1, 4})


@in_simulated_cluster(4)
async def test_a_reassignment_continues_when_the_leader_dies(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(4)
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (3, 4)))
    await simulated_cluster.wait_until(lambda: 3 in simulated_cluster.record("t").isr)
    simulated_cluster[1].kill()
    await simulated_cluster.wait_for_leader("t")
    simulated_cluster.heal()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").replicas == (3, 4))
    assert await read_all(await simulated_cluster.wait_for_leader("t"), "t") == [b"a"]
    await simulated_cluster.wait_until(lambda: simulated_cluster[2].host.disk.list("/data/logs") == [])


@in_simulated_cluster()
async def test_a_drained_broker_loses_its_replicas_and_leaderships(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (2, 1))
    await drain(SimRegistry(simulated_cluster.registry_ensemble), 1, is_drained=True)
    for index in (0, 1):
        await simulated_cluster.wait_until(lambda index=index: set(simulated_cluster.record("t", index).isr) == {2, 3})  # type: ignore[misc]
        assert not simulated_cluster.record("t", index).removing
    assert list(simulated_cluster[2].broker.catalogue.usable_brokers()) == [2, 3]


@in_simulated_cluster()
async def test_replicas_that_cannot_be_moved_stay_on_a_drained_broker(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await drain(SimRegistry(simulated_cluster.registry_ensemble), 1, is_drained=True)
    await simulated_cluster.wait_for_leader("t", 2)
    await asyncio.sleep(3)
    assert set(simulated_cluster.record("t").replicas) == {1, 2, 3}
    assert await produce(simulated_cluster[2], "t", b"a") == 0


@in_simulated_cluster(opens=False)
async def test_the_log_of_groups_grows_with_the_brokers(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.open(1)
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.offsets_log.ensure(), "ensure")
    assert [simulated_cluster.record(CONSUMER_OFFSETS, index).replicas for index in (0, 1)] == [(1,), (1,)]
    await simulated_cluster.open(2, 3)
    for index in (0, 1):
        await simulated_cluster.wait_until_in_sync(CONSUMER_OFFSETS, 1, 2, 3, index=index)
        await simulated_cluster.wait_until(
            lambda index=index: not simulated_cluster.record(CONSUMER_OFFSETS, index).adding  # type: ignore[misc]
        )
    assert simulated_cluster.record(CONSUMER_OFFSETS, 0).leader == 1, "who leads is not changed by that"


@in_simulated_cluster(4, offsets_topic_replication_factor="2")
async def test_internal_topics_gain_replicas_only_up_to_the_replication_factor(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.offsets_log.ensure(), "ensure")
    await asyncio.sleep(3)
    for index in (0, 1):
        assert len(simulated_cluster.record(CONSUMER_OFFSETS, index).replicas) == 2


# What is left over


@in_simulated_cluster()
async def test_the_partitions_of_a_deleted_topic_are_removed(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", *[(1, 2)] * 3)
    await simulated_cluster.create_topic("stays")
    await simulated_cluster[3].delete_topic("t")
    await simulated_cluster.wait_until(
        lambda: len([key for key in simulated_cluster.registry_ensemble.entries if key.startswith(PARTITIONS_KEY)]) == 1
    )
    for simulated_broker in simulated_cluster.up:
        assert (simulated_broker.broker.catalogue.orphans, simulated_broker.broker.catalogue.deleted) == ([], set())


@in_simulated_cluster()
async def test_partitions_of_a_topic_in_creation_are_kept(simulated_cluster: SimulatedCluster) -> None:
    other = SimRegistry(simulated_cluster.registry_ensemble)
    topic_id = UUID(int=5)
    first, second = split_into_commits(create_operations(topic_id, 0, [PLACE] * 501))
    await other.commit(first)
    await asyncio.sleep(5)
    presiding = await until_elected(simulated_cluster)
    presiding.registry.disconnect()  # a doubt that passes is no new term
    await asyncio.sleep(0.1)
    presiding.registry.reconnect()
    await asyncio.sleep(5)
    assert simulated_cluster.registry_ensemble.entries[partition_key(topic_id, 0)].version == 0
    record = TopicRecord(name="t", id=topic_id, partitions=501, created_ms=0)
    await other.commit([*second, Create("/topics/t", msgspec.json.encode(record))])
    await simulated_cluster.wait_for_leader("t", 1, 500)


@in_simulated_cluster()
async def test_partitions_of_an_abandoned_creation_are_removed_by_the_next_controller(
    simulated_cluster: SimulatedCluster,
) -> None:
    topic_id = UUID(int=5)
    await SimRegistry(simulated_cluster.registry_ensemble).commit(
        [Create(partition_key(topic_id, 0), encode_partition(PLACE))]
    )
    first = await until_elected(simulated_cluster)
    await asyncio.sleep(2)
    first.kill()
    await until_elected(simulated_cluster, but=first)
    await simulated_cluster.wait_until(
        lambda: partition_key(topic_id, 0) not in simulated_cluster.registry_ensemble.entries
    )


@in_simulated_cluster()
async def test_a_new_controller_keeps_the_partitions_of_a_topic_that_its_mirror_has_read_only_in_part(
    simulated_cluster: SimulatedCluster,
) -> None:
    topic_id = UUID(int=5)
    record = TopicRecord(name="t", id=topic_id, partitions=1, created_ms=0)
    first = await until_elected(simulated_cluster)
    survivors = [simulated_broker for simulated_broker in simulated_cluster.up if simulated_broker is not first]
    topic_read = asyncio.Event()

    def delay_topic_key(simulated_broker: SimulatedClusterBroker) -> None:
        """The controller's mirror has the partition and waits for the topic key while orphans are looked for."""
        get, repair_all = simulated_broker.registry.get, simulated_broker.broker.catalogue.colocated_topics.repair_all

        async def delayed_get(key: str) -> RegistryEntry | None:
            if key == "/topics/t":
                await topic_read.wait()
            return await get(key)

        async def create_topic_first() -> None:
            if topic_id not in simulated_broker.broker.catalogue.orphans:
                await SimRegistry(simulated_cluster.registry_ensemble).commit(
                    [*create_operations(topic_id, 0, [PLACE]), Create("/topics/t", msgspec.json.encode(record))]
                )
                await simulated_cluster.wait_until(lambda: topic_id in simulated_broker.broker.catalogue.orphans)
            await repair_all()

        simulated_broker.registry.get = delayed_get  # type: ignore[method-assign]
        simulated_broker.broker.catalogue.colocated_topics.repair_all = create_topic_first  # type: ignore[method-assign]

    for simulated_broker in survivors:
        delay_topic_key(simulated_broker)
    first.kill()
    await until_elected(simulated_cluster, but=first)
    await asyncio.sleep(3)
    topic_read.set()
    assert partition_key(topic_id, 0) in simulated_cluster.registry_ensemble.entries
    await simulated_cluster.wait_for_leader("t", 2)


@in_simulated_cluster()
async def test_a_growth_that_was_cut_off_is_no_part_of_the_topic(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    catalogue = simulated_cluster[1].broker.catalogue
    left_behind = [PLACE] * 2
    await SimRegistry(simulated_cluster.registry_ensemble).commit(
        create_operations(catalogue.topic("t").id, 1, left_behind)
    )
    await asyncio.sleep(1)
    assert list(catalogue.topic("t").partition_records) == [0]
    began = simulated_cluster.world.clock.monotonic()
    await simulated_cluster[1].restart()
    assert simulated_cluster.world.clock.monotonic() - began < 3, "nobody waits until they are led"
    elsewhere = [(2, 3)] * 3
    growing = simulated_cluster[2].broker.catalogue.add_partitions("t", 4, assignment=elsewhere)
    await simulated_cluster[2].host.start(growing, "grow")
    assert await produce(simulated_cluster[2], "t", b"a", partition=1) == 0
    assert {simulated_cluster.record("t", index).replicas for index in (1, 2, 3)} == {(2, 3)}
