"""Replicas are placed on different brokers, evenly, with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machines.replication.replication_model import broker_record, brokers_up

from headrace.machines.controller import placement
from headrace.machines.controller.placement import balance_replicas, place_replicas, resize_replicas
from headrace.model.errors import InvalidReplicationFactor
from headrace.model.registry_records import BrokerRecord

Nodes = tuple[int, ...]


def in_racks(*racks: str | None) -> dict[int, BrokerRecord]:
    return {node_id: broker_record(node_id, rack=rack) for node_id, rack in enumerate(racks, start=1)}


def difference(held: Iterable[int], brokers: Collection[int]) -> int:
    """Between the broker that has most and the one that has least."""
    counts = Counter(dict.fromkeys(brokers, 0))
    counts.update(held)
    return max(counts.values()) - min(counts.values())


def replicas_of(placed: Iterable[Nodes]) -> list[int]:
    return [node_id for nodes in placed for node_id in nodes]


def racks_of(nodes: Nodes, brokers: Mapping[int, BrokerRecord]) -> set[str | int]:
    return {brokers[node_id].rack or node_id for node_id in nodes}


clusters = st.integers(1, 7)


@given(st.data(), clusters, st.integers(1, 40))
def test_new_partitions_are_placed_evenly(data: st.DataObject, size: int, partitions: int) -> None:
    replication = data.draw(st.integers(1, size))
    brokers = brokers_up(*range(1, size + 1))
    placed = place_replicas(partitions, replication, brokers, {}, {})
    assert len(placed) == partitions
    assert all(len(set(nodes)) == replication for nodes in placed)
    assert difference(replicas_of(placed), brokers) <= 1
    assert difference([nodes[0] for nodes in placed], brokers) <= 1


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 30))
def test_replicas_are_spread_over_all_racks(data: st.DataObject, racks: int, rack_size: int, partitions: int) -> None:
    brokers = in_racks(*(f"rack-{index % racks}" for index in range(racks * rack_size)))
    replication = data.draw(st.integers(1, len(brokers)))
    placed = place_replicas(partitions, replication, brokers, {}, {})
    assert all(len(racks_of(nodes, brokers)) == min(replication, racks) for nodes in placed)
    assert difference(replicas_of(placed), brokers) <= 1
    assert difference([nodes[0] for nodes in placed], brokers) <= 1


def test_racks_of_unlike_size_are_all_used() -> None:
    brokers = in_racks("a", "b", "b", "b", None)
    assert all(len(racks_of(nodes, brokers)) == 3 for nodes in place_replicas(10, 3, brokers, {}, {}))


def test_brokers_that_hold_less_get_more() -> None:
    placed = place_replicas(4, 1, brokers_up(1, 2), {1: 4, 2: 0}, {1: 4, 2: 0})
    assert placed == [(2,), (2,), (2,), (2,)]


def test_brokers_that_lead_less_come_first() -> None:
    assert place_replicas(2, 2, brokers_up(1, 2), {1: 2, 2: 2}, {1: 2, 2: 0}) == [(2, 1), (2, 1)]


def test_the_partitions_of_one_broker_are_shared_with_many_others() -> None:
    placed = place_replicas(60, 2, brokers_up(1, 2, 3, 4), {}, {})
    partners = Counter(node_id for nodes in placed if 1 in nodes for node_id in nodes if node_id != 1)
    assert difference(partners.elements(), (2, 3, 4)) <= 1


@pytest.mark.parametrize("replication", [0, 3])
def test_an_impossible_replication_factor_is_rejected(replication: int) -> None:
    with pytest.raises(InvalidReplicationFactor):
        place_replicas(1, replication, brokers_up(1, 2), {}, {})
    with pytest.raises(InvalidReplicationFactor):
        balance_replicas({"a": (1, 2, 3)[:replication]}, brokers_up(1, 2))


def test_removing_a_broker_moves_only_its_replicas() -> None:
    current = dict(enumerate(place_replicas(25, 2, brokers_up(1, 2, 3, 4, 5, 6), {}, {})))
    moves = balance_replicas(current, brokers_up(1, 2, 3, 4, 5))
    assert all(6 in current[key] for key in moves)
    assert len(moves) == sum(6 in nodes for nodes in current.values()) == 8


@given(st.data(), clusters, clusters, st.integers(1, 40))
def test_balancing_moves_as_few_replicas_as_possible(
    data: st.DataObject, before: int, after: int, partitions: int
) -> None:
    """Brokers are added at the end and removed from the start."""
    replication = data.draw(st.integers(1, min(before, after)))
    gone = data.draw(st.integers(0, before - 1))
    old = brokers_up(*range(1, before + 1))
    new = brokers_up(*range(gone + 1, gone + after + 1))
    current = dict(enumerate(place_replicas(partitions, replication, old, {}, {})))
    moves = balance_replicas(current, new)
    target = {**current, **moves}
    assert all(len(set(nodes)) == replication and new.keys() >= {*nodes} for nodes in target.values())
    assert difference(replicas_of(target.values()), new) <= 1
    # The least that must move: what is on brokers that go, and else what fills up the new ones.
    moved = sum(len({*nodes} - {*current[key]}) for key, nodes in moves.items())
    must_go = sum(node_id not in new for node_id in replicas_of(current.values()))
    share = -(-partitions * replication // len(new))
    assert moved <= max(must_go, share * len(new.keys() - old.keys()))


@given(st.integers(2, 7), st.integers(1, 40))
def test_a_balanced_placement_is_left_unchanged(size: int, partitions: int) -> None:
    brokers = brokers_up(*range(1, size + 1))
    current = dict(enumerate(place_replicas(partitions, 2, brokers, {}, {})))
    assert balance_replicas(current, brokers) == {}


def test_a_new_broker_gets_its_share_of_leaders_and_of_every_topic() -> None:
    names = [(topic, index) for topic in "abc" for index in range(12)]
    current = dict(zip(names, place_replicas(36, 2, brokers_up(1, 2, 3), {}, {}), strict=True))
    moves = balance_replicas(current, brokers_up(1, 2, 3, 4))
    target = {**current, **moves}
    assert difference([nodes[0] for nodes in target.values()], (1, 2, 3, 4)) <= 1
    assert len(moves) == 18  # one replica of each
    assert min(Counter(topic for topic, _ in moves).values()) >= 4


@given(st.data(), st.integers(2, 3), st.integers(1, 30))
def test_spreading_keeps_the_racks(data: st.DataObject, replication: int, partitions: int) -> None:
    old = in_racks("a", "b", "c", "a", "b", "c")
    new = {**old, 7: broker_record(7, rack=data.draw(st.sampled_from("abc")))}
    gone = data.draw(st.sampled_from([None, 1, 2, 3]))
    if gone is not None:
        del new[gone]
    current = dict(enumerate(place_replicas(partitions, replication, old, {}, {})))
    target = {**current, **balance_replicas(current, new)}
    assert all(len(racks_of(nodes, new)) == replication for nodes in target.values())


def test_the_work_grows_in_proportion_to_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Balancing onto racks of different sizes took 5 s for 2,000 partitions and 20 s for 4,000, on the event loop."""
    examined = Counter[int]()
    may_move = placement._BrokerLoads.may_move

    def count(self: placement._BrokerLoads, nodes: Nodes, giver: int, taker: int) -> bool:
        examined[partitions] += 1
        return may_move(self, nodes, giver, taker)

    monkeypatch.setattr(placement._BrokerLoads, "may_move", count)
    for partitions in (250, 500):
        current = dict(enumerate(place_replicas(partitions, 3, in_racks(*"abc"), {}, {})))
        assert balance_replicas(current, in_racks(*"abcccc"))
    assert examined[500] < 3 * examined[250]


@given(st.data(), clusters, st.integers(1, 30))
def test_resized_partitions_keep_their_leader_and_as_many_replicas_as_possible(
    data: st.DataObject, size: int, partitions: int
) -> None:
    before, after = data.draw(st.integers(1, size)), data.draw(st.integers(1, size))
    brokers = brokers_up(*range(1, size + 1))
    current = dict(enumerate(place_replicas(partitions, before, brokers, {}, {})))
    resized = resize_replicas(current, after, brokers)
    assert resized.keys() == (set() if before == after else current.keys())
    for key, nodes in resized.items():
        assert nodes[0] == current[key][0]
        assert len(set(nodes)) == after
        assert len({*nodes} & {*current[key]}) == min(before, after)
    assert difference(replicas_of(resized.values()), brokers) <= 2


@pytest.mark.parametrize("replication", [2, 3])
def test_resized_partitions_are_in_as_many_racks_as_possible(replication: int) -> None:
    brokers = in_racks("a", "a", "b", "b", "c")
    resized = resize_replicas({0: (1, 2, 3, 4), 1: (1,), 2: (2, 1, 4, 5)}, replication, brokers)
    assert [len(racks_of(nodes, brokers)) for nodes in resized.values()] == [
        min(replication, 2),
        replication,
        replication,
    ]


def test_replicas_elsewhere_are_removed_first_and_replaced_if_there_are_too_few() -> None:
    brokers = brokers_up(1, 2, 4)
    assert resize_replicas({0: (1, 2, 9), 1: (2, 9, 1)}, 2, brokers) == {0: (1, 2), 1: (2, 1)}
    (nodes,) = resize_replicas({0: (1, 9)}, 3, brokers).values()
    assert (nodes[0], {*nodes}) == (1, {1, 2, 4})


def test_leadership_is_spread_evenly_if_the_first_replicas_are_removed() -> None:
    brokers = brokers_up(1, 2)
    current = dict.fromkeys(range(4), (9, 1, 2))
    resized = resize_replicas(current, 2, brokers, others=[(1, 2), (1, 2)])
    assert sorted(nodes[0] for nodes in resized.values()) == [1, 2, 2, 2]


def test_new_replicas_go_to_the_brokers_that_hold_the_least() -> None:
    brokers = brokers_up(1, 2, 3)
    assert resize_replicas({0: (1,)}, 2, brokers, others=[(2, 1), (2, 1)]) == {0: (1, 3)}


@pytest.mark.parametrize("replication", [0, 3])
def test_a_partition_cannot_have_no_replicas_or_more_than_there_are_brokers(replication: int) -> None:
    with pytest.raises(InvalidReplicationFactor):
        resize_replicas({0: (1,)}, replication, brokers_up(1, 2))
