"""The controller: who it is, what it decides, and that it decides nothing when it may have been replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

from headrace.machines.reassignment import begin
from headrace.model.names import CONSUMER_OFFSETS
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY, CONTROLLER_KEY, decode_controller, drain, live_key
from headrace.registry.interface import Check, Create, Entry, Operation, OutcomeUnknown, Set
from headrace.registry.partitions import PARTITIONS_KEY, chunks, creations, encode_partition, partition_key
from headrace.registry.topics import TopicRecord
from headrace.testkit.registry import SimRegistry

PLACE = PartitionRecord(replicas=(1, 2), isr=(1, 2), leader=1, leader_broker_epoch=1)


def controller(town: Town) -> ClusterHouse:
    return town[decode_controller(town.truth.entries[CONTROLLER_KEY]).node_id]


async def until_elected(town: Town, *, but: ClusterHouse | None = None) -> ClusterHouse:
    def is_elected() -> bool:
        return (
            CONTROLLER_KEY in town.truth.entries
            and controller(town) is not but
            and controller(town).broker.cluster.controller.is_presiding
        )

    await town.until(is_elected)
    return controller(town)


def epoch(town: Town) -> int:
    return int(town.truth.entries[CONTROLLER_EPOCH_KEY].value)


def written(commits: list[Sequence[Operation]]) -> list[Sequence[Operation]]:
    return [one for one in commits if any(isinstance(operation, Set) for operation in one)]


class Watched:
    """What a broker commits as the controller. While `holds` is set, it does not arrive."""

    def __init__(self, house: ClusterHouse) -> None:
        self.commits: list[Sequence[Operation]] = []
        self.outcomes: list[Exception | None] = []
        self.arrives = asyncio.Event()
        self.arrives.set()
        self._commit = house.registry.commit
        house.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[Operation]) -> None:
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


# Who it is


@in_town()
async def test_there_is_one_and_all_know_it(town: Town) -> None:
    await until_elected(town)
    assert [house.broker.cluster.controller.is_presiding for house in town.up].count(True) == 1
    assert len({house.broker.catalogue.controller for house in town.up}) == 1
    assert epoch(town) == 1


@in_town()
async def test_when_it_goes_another_is_elected_in_a_new_epoch(town: Town) -> None:
    for number in (1, 2):
        first = await until_elected(town)
        assert epoch(town) == number
        first.kill()
        await until_elected(town, but=first)
    assert epoch(town) == 3


@in_town(sessions_time_out=True)
async def test_it_decides_nothing_while_its_session_is_in_doubt_and_goes_on_when_that_has_passed(town: Town) -> None:
    first = await until_elected(town)
    await town.make_topic("t", (2, 3), (3, 2), by=1)
    watched = Watched(first)
    first.registry.disconnect()
    await asyncio.sleep(0.01)
    assert not first.broker.cluster.controller.is_presiding
    first.broker.catalogue.take(live_key(2), None)  # what it believes is not the question
    await asyncio.sleep(0.5)
    assert watched.commits == []
    town[2].kill()
    await asyncio.sleep(0.5)
    first.registry.reconnect()
    await town.until_led("t", 3)
    assert (epoch(town), controller(town)) == (1, first), "it has kept its seat"


@in_town(sessions_time_out=True)
async def test_it_gives_up_its_seat_when_the_doubt_was_right(town: Town) -> None:
    first = await until_elected(town)
    first.registry.disconnect(silently=True)
    second = await until_elected(town, but=first)
    assert epoch(town) == 2
    first.registry.reconnect()
    await asyncio.sleep(1)
    assert (controller(town), first.broker.cluster.controller.is_presiding) == (second, False)
    assert first.broker.cluster.membership.session_valid
    await town.make_topic("t", (first.node_id, second.node_id))
    assert await produce(first, "t", b"a") == 0


@in_town()
async def test_what_a_replaced_one_still_sends_has_no_effect(town: Town) -> None:
    """Its session may even be replaced by then: the epoch is what stops it."""
    first = await until_elected(town)
    others = [house for house in town.up if house is not first]
    await town.make_topic("t", (others[0].node_id, others[1].node_id))
    watched = Watched(first)
    watched.arrives.clear()
    others[0].kill()
    await town.until(lambda: bool(watched.commits))
    town.expire(first.node_id)
    second = await until_elected(town, but=first)
    await town.until_led("t", others[1].node_id)
    record = town.record("t")
    assert (second, record.leader_epoch) == (others[1], 1)
    watched.arrives.set()
    await asyncio.sleep(1)
    assert watched.outcomes[0] is not None
    assert town.record("t") == record


@in_town()
async def test_an_election_whose_outcome_is_unknown_is_told_by_the_seat(town: Town) -> None:
    first = await until_elected(town)
    for house in town.up:
        if house is not first:
            _answer_nothing(house)
    first.kill()
    second = await until_elected(town, but=first)
    assert epoch(town) == 2
    assert second.broker.cluster.controller.is_presiding


def _answer_nothing(house: ClusterHouse) -> None:
    commit = house.registry.commit

    async def lose_the_answer(operations: Sequence[Operation]) -> None:
        await commit(operations)
        if any(isinstance(one, Create) and one.key == CONTROLLER_KEY for one in operations):
            raise OutcomeUnknown("The connection was lost under a commit")

    house.registry.commit = lose_the_answer  # type: ignore[method-assign]


# What it decides


@in_town()
async def test_a_broker_that_was_started_again_is_elected_anew_also_if_nobody_saw_it_go(town: Town) -> None:
    """KIP-380: it may have lost what it had in memory, and its followers must know."""
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[1].kill()
    await town.open(1)
    leader = await town.until_led("t")
    assert town.record("t").leader_epoch > 0
    assert await produce(leader, "t", b"b") == 1


@in_town(1)
async def test_alone_too(town: Town) -> None:
    await town.make_topic("t", (1,))
    await produce(town[1], "t", b"a")
    town[1].kill()
    await town.open(1)
    record = town.record("t")
    assert (record.leader, record.leader_epoch, record.leader_broker_epoch) == (1, 1, 2)


@in_town()
async def test_a_dead_broker_leaves_the_sets_in_which_others_remain_and_stays_in_those_where_it_is_the_last(
    town: Town,
) -> None:
    await town.make_topic("both", (3, 2))
    await town.make_topic("alone", (3,))
    town[3].kill()
    await town.until_led("both", 2)
    record = town.record("both")
    assert (record.isr, record.elr) == ((2,), ())
    await town.until(lambda: town.record("alone").leader == -1)
    record = town.record("alone")
    assert (record.isr, record.leader_epoch) == ((3,), 1)
    await town.open(3)
    await town.until_led("alone", 3)
    assert town.record("alone").leader_epoch == 2


@in_town()
async def test_of_too_few_to_commit_the_ones_that_left_may_still_lead(town: Town) -> None:
    """KIP-966: they have everything that is committed."""
    await town.make_topic("t", (1, 2), min_insync_replicas="2")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town[2].kill()
    await town.until(lambda: town.record("t").elr == (2,))
    town[1].kill()
    await town.until(lambda: town.record("t").leader == -1)
    assert (town.record("t").isr, town.record("t").elr) == ((1,), (2,))
    await town.open(2)
    await town.until_led("t", 2)
    record = town.record("t")
    assert (record.isr, record.elr, record.unclean_epoch) == ((2,), (1,), -1)
    assert town.replica(2, "t").log.end_offset == 1
    await town.open(1)
    await town.until_in_sync("t")
    await town.until_alike("t")
    assert town.record("t").elr == ()
    assert await read_all(town[2], "t") == [b"a"]


@in_town(leader_imbalance_check_interval_seconds="5")
async def test_a_lead_is_given_back_to_the_replica_that_comes_first(town: Town) -> None:
    await town.make_topic("t", (2, 3))
    town[2].kill()
    await town.until_led("t", 3)
    await town.open(2)
    await town.until_led("t", 2)
    assert set(town.record("t").isr) == {2, 3}


@in_town(leader_imbalance_check_interval_seconds="5", auto_leader_rebalance_enable="false")
async def test_unless_that_is_not_wanted(town: Town) -> None:
    await town.make_topic("t", (2, 3))
    town[2].kill()
    await town.until_led("t", 3)
    await town.open(2)
    await town.until_in_sync("t")
    await asyncio.sleep(20)
    assert town.leader("t") is town[3]


@in_town()
async def test_one_decision_that_rests_on_the_past_does_not_keep_the_others_from_being_made(town: Town) -> None:
    first = await until_elected(town)
    others = [house.node_id for house in town.up if house is not first]
    await town.make_topic("t", *[tuple(others)] * 5)
    watched = Watched(first)
    watched.arrives.clear()
    town[others[0]].kill()
    await town.until(lambda: bool(watched.commits))
    assert len(watched.commits[0]) == 6
    await town.change("t", lambda record: replace(record, leader_epoch=record.leader_epoch + 1, leader=-1), index=2)
    watched.arrives.set()
    for index in range(5):
        await town.until_led("t", others[1], index)
    assert [town.record("t", index).leader_epoch for index in range(5)] == [1, 1, 2, 1, 1]


# Moving


@in_town(4)
async def test_a_move_goes_on_when_the_new_replica_dies_and_comes_back(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    town[4].kill()
    await town.change("t", lambda record: begin(record, (1, 4)))
    await asyncio.sleep(5)
    record = town.record("t")
    assert (record.replicas, record.isr, record.removing) == ((1, 4, 2), (1, 2), (2,)), "nothing is dropped early"
    await town.open(4)
    await town.until(lambda: not town.record("t").adding)
    assert (town.record("t").replicas, set(town.record("t").isr)) == ((1, 4), {1, 4})


@in_town(4)
async def test_a_move_goes_on_when_the_leader_dies(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(4)
    await town.change("t", lambda record: begin(record, (3, 4)))
    await town.until(lambda: 3 in town.record("t").isr)
    town[1].kill()
    await town.until_led("t")
    town.heal()
    await town.until(lambda: town.record("t").replicas == (3, 4))
    assert await read_all(await town.until_led("t"), "t") == [b"a"]
    await town.until(lambda: town[2].host.disk.list("/data/logs") == [])


@in_town()
async def test_what_a_drained_broker_holds_is_moved_and_it_leads_nothing(town: Town) -> None:
    await town.make_topic("t", (1, 2), (2, 1))
    await drain(SimRegistry(town.truth), 1, is_drained=True)
    for index in (0, 1):
        await town.until(lambda index=index: set(town.record("t", index).isr) == {2, 3})  # type: ignore[misc]
        assert not town.record("t", index).removing
    assert list(town[2].broker.catalogue.usable_brokers()) == [2, 3]


@in_town()
async def test_what_cannot_be_moved_from_a_drained_broker_stays(town: Town) -> None:
    await town.make_topic("t")
    await drain(SimRegistry(town.truth), 1, is_drained=True)
    await town.until_led("t", 2)
    await asyncio.sleep(3)
    assert set(town.record("t").replicas) == {1, 2, 3}
    assert await produce(town[2], "t", b"a") == 0


@in_town(opens=False)
async def test_the_log_of_groups_grows_with_the_brokers(town: Town) -> None:
    await town.open(1)
    await town[1].host.start(town[1].broker.offsets_log.ensure(), "ensure")
    assert [town.record(CONSUMER_OFFSETS, index).replicas for index in (0, 1)] == [(1,), (1,)]
    await town.open(2, 3)
    for index in (0, 1):
        await town.until_in_sync(CONSUMER_OFFSETS, 1, 2, 3, index=index)
        await town.until(lambda index=index: not town.record(CONSUMER_OFFSETS, index).adding)  # type: ignore[misc]
    assert town.record(CONSUMER_OFFSETS, 0).leader == 1, "who leads is not changed by that"


@in_town(4, offsets_topic_replication_factor="2")
async def test_but_not_beyond_what_is_wanted(town: Town) -> None:
    await town[1].host.start(town[1].broker.offsets_log.ensure(), "ensure")
    await asyncio.sleep(3)
    for index in (0, 1):
        assert len(town.record(CONSUMER_OFFSETS, index).replicas) == 2


# What is left over


@in_town()
async def test_the_partitions_of_a_deleted_topic_are_removed(town: Town) -> None:
    await town.make_topic("t", *[(1, 2)] * 3)
    await town.make_topic("stays")
    await town[3].delete_topic("t")
    await town.until(lambda: len([key for key in town.truth.entries if key.startswith(PARTITIONS_KEY)]) == 1)
    for house in town.up:
        assert (house.broker.catalogue.orphans, house.broker.catalogue.deleted) == ([], set())


@in_town()
async def test_a_topic_that_is_being_made_is_left_alone(town: Town) -> None:
    other = SimRegistry(town.truth)
    topic_id = UUID(int=5)
    first, second = chunks(creations(topic_id, 0, [PLACE] * 501))
    await other.commit(first)
    await asyncio.sleep(5)
    presiding = await until_elected(town)
    presiding.registry.disconnect()  # a doubt that passes is no new term
    await asyncio.sleep(0.1)
    presiding.registry.reconnect()
    await asyncio.sleep(5)
    assert town.truth.entries[partition_key(topic_id, 0)].version == 0
    record = TopicRecord(name="t", id=topic_id, partitions=501, created_ms=0)
    await other.commit([*second, Create("/topics/t", msgspec.json.encode(record))])
    await town.until_led("t", 1, 500)


@in_town()
async def test_what_is_left_of_a_topic_whose_making_was_given_up_is_removed_by_the_next_controller(town: Town) -> None:
    topic_id = UUID(int=5)
    await SimRegistry(town.truth).commit([Create(partition_key(topic_id, 0), encode_partition(PLACE))])
    first = await until_elected(town)
    await asyncio.sleep(2)
    first.kill()
    await until_elected(town, but=first)
    await town.until(lambda: partition_key(topic_id, 0) not in town.truth.entries)


@in_town()
async def test_a_new_controller_keeps_the_partitions_of_a_topic_that_its_mirror_has_read_only_in_part(
    town: Town,
) -> None:
    topic_id = UUID(int=5)
    record = TopicRecord(name="t", id=topic_id, partitions=1, created_ms=0)
    first = await until_elected(town)
    survivors = [house for house in town.up if house is not first]
    topic_read = asyncio.Event()

    def delay_topic_key(house: ClusterHouse) -> None:
        """The controller's mirror has the partition and waits for the topic key while orphans are looked for."""
        get, tend = house.registry.get, house.broker.catalogue.companions.tend

        async def delayed_get(key: str) -> Entry | None:
            if key == "/topics/t":
                await topic_read.wait()
            return await get(key)

        async def create_topic_first() -> None:
            if topic_id not in house.broker.catalogue.orphans:
                await SimRegistry(town.truth).commit(
                    [*creations(topic_id, 0, [PLACE]), Create("/topics/t", msgspec.json.encode(record))]
                )
                await town.until(lambda: topic_id in house.broker.catalogue.orphans)
            await tend()

        house.registry.get = delayed_get  # type: ignore[method-assign]
        house.broker.catalogue.companions.tend = create_topic_first  # type: ignore[method-assign]

    for house in survivors:
        delay_topic_key(house)
    first.kill()
    await until_elected(town, but=first)
    await asyncio.sleep(3)
    topic_read.set()
    assert partition_key(topic_id, 0) in town.truth.entries
    await town.until_led("t", 2)


@in_town()
async def test_a_growth_that_was_cut_off_is_no_part_of_the_topic(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    catalogue = town[1].broker.catalogue
    left_behind = [PLACE] * 2
    await SimRegistry(town.truth).commit(creations(catalogue.topic("t").id, 1, left_behind))
    await asyncio.sleep(1)
    assert list(catalogue.topic("t").places) == [0]
    began = town.world.clock.monotonic()
    await town[1].restart()
    assert town.world.clock.monotonic() - began < 3, "nobody waits until they are led"
    elsewhere = [(2, 3)] * 3
    growing = town[2].broker.catalogue.add_partitions("t", 4, assignment=elsewhere)
    await town[2].host.start(growing, "grow")
    assert await produce(town[2], "t", b"a", partition=1) == 0
    assert {town.record("t", index).replicas for index in (1, 2, 3)} == {(2, 3)}
