"""Assign partitions to the members of a share group.

- Every partition gets a member, and every member a partition.
- Partitions with the same subscribers are assigned together. If there are more partitions than members, each partition
  gets one member, and the members' counts differ by at most one. If there are fewer, each member gets one partition,
  and the partitions' counts differ by at most one.
- Members keep their partitions as far as that allows.
- The same subscriptions always give the same assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from headrace.machines.groups.assignors import GroupAssignment, MemberSubscriptions, PartitionCounts, TopicIdPartition

Item = TypeVar("Item")
Bin = TypeVar("Bin")


def assign_share_partitions(subscriptions: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """`sizes` has the partition count of every subscribed topic."""
    assignment: GroupAssignment = {member_id: set() for member_id in sorted(subscriptions)}
    pools: dict[tuple[str, ...], list[TopicIdPartition]] = {}
    for topic in sorted(sizes):
        subscribers = tuple(member_id for member_id in assignment if topic in subscriptions[member_id].topics)
        pools.setdefault(subscribers, []).extend((topic, index) for index in range(sizes[topic]))
    for members, partitions in pools.items():
        for member_id, partition in _pair_members(members, partitions, subscriptions):
            assignment[member_id].add(partition)
    return assignment


def _pair_members(
    members: Sequence[str], partitions: Sequence[TopicIdPartition], subscriptions: MemberSubscriptions
) -> Iterable[tuple[str, TopicIdPartition]]:
    if not members:
        return ()
    if len(members) > len(partitions):
        held = {member_id: sorted(subscriptions[member_id].held) for member_id in members}
        return _spread_evenly(members, partitions, held).items()
    holders: dict[TopicIdPartition, list[str]] = {}
    for member_id in members:
        for partition in subscriptions[member_id].held:
            holders.setdefault(partition, []).append(member_id)
    return ((member_id, partition) for partition, member_id in _spread_evenly(partitions, members, holders).items())


def _spread_evenly(items: Sequence[Item], bins: Sequence[Bin], before: Mapping[Item, Sequence[Bin]]) -> dict[Item, Bin]:
    """Put each item in one bin. The sizes of bins differ by at most one; items stay in their bins if possible."""
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
    short_bins = [bin_ for bin_ in bins for _ in range(quota - counts[bin_])]
    free_bins = chain(short_bins, (bin_ for bin_ in bins if counts[bin_] == quota))
    for item in items:
        if item not in spread:
            put(item, next(free_bins))
    return spread
