"""Who shall read which partition of a share group: every partition somebody, every member something.

Partitions that have the same subscribers are spread together. Where they are more than the members, each goes to one
member, and the members have equally many, give or take one; where they are fewer, each member gets one, and they have
equally many members. Who had what keeps it as far as that allows. The same claims give the same assignment everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from headrace.machines.groups.assignors import GroupAssignment, MemberSubscriptions, PartitionCounts, TopicIdPartition

Item = TypeVar("Item")
Bin = TypeVar("Bin")


def assign_share_partitions(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """`sizes`: the partitions of every topic that is claimed."""
    assignment: GroupAssignment = {member_id: set() for member_id in sorted(claims)}
    pools: dict[tuple[str, ...], list[TopicIdPartition]] = {}
    for topic in sorted(sizes):
        subscribers = tuple(member_id for member_id in assignment if topic in claims[member_id].topics)
        pools.setdefault(subscribers, []).extend((topic, index) for index in range(sizes[topic]))
    for members, partitions in pools.items():
        for member_id, partition in _pair_members(members, partitions, claims):
            assignment[member_id].add(partition)
    return assignment


def _pair_members(
    members: Sequence[str], partitions: Sequence[TopicIdPartition], claims: MemberSubscriptions
) -> Iterable[tuple[str, TopicIdPartition]]:
    if not members:
        return ()
    if len(members) > len(partitions):
        held = {member_id: sorted(claims[member_id].held) for member_id in members}
        return _spread_evenly(members, partitions, held).items()
    holders: dict[TopicIdPartition, list[str]] = {}
    for member_id in members:
        for partition in claims[member_id].held:
            holders.setdefault(partition, []).append(member_id)
    return ((member_id, partition) for partition, member_id in _spread_evenly(partitions, members, holders).items())


def _spread_evenly(items: Sequence[Item], bins: Sequence[Bin], before: Mapping[Item, Sequence[Bin]]) -> dict[Item, Bin]:
    """Each item in one bin, the bins equally full, give or take one; items stay where they were if there is room."""
    if not bins:
        return {}
    quota, larger = divmod(len(items), len(bins))
    counts = dict.fromkeys(bins, 0)
    spread: dict[Item, Bin] = {}

    def put(item: Item, bin_: Bin) -> None:
        nonlocal larger
        larger -= counts[bin_] == quota
        counts[bin_] += 1
        spread[item] = bin_

    for item in items:
        for bin_ in before.get(item, ()):
            if bin_ in counts and counts[bin_] < quota + (larger > 0):
                put(item, bin_)
                break
    needy = [bin_ for bin_ in bins for _ in range(quota - counts[bin_])]
    places = chain(needy, (bin_ for bin_ in bins if counts[bin_] == quota))
    for item in items:
        if item not in spread:
            put(item, next(places))
    return spread
