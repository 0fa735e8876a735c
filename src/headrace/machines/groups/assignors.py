"""Who shall read which partition: the server-side assignors of the newer group protocol.

An assignor is a pure function of what the members claim and of the sizes of the topics: every partition of a topic that
somebody subscribes to goes to exactly one subscriber. The same claims give the same assignment on every broker.

`uniform` evens out the numbers and leaves partitions where they are as far as that allows. `range` gives each member
the same numbers of every topic, so that topics with the same keys can be joined; it does not care who had what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import msgspec

TopicIdPartition = tuple[UUID, int]


class MemberSubscription(msgspec.Struct, frozen=True):
    """What speaks for a member: the topics that it subscribes to (those that exist), and what it was given before."""

    topics: frozenset[UUID]
    held: frozenset[TopicIdPartition] = frozenset()
    instance_id: str | None = None


MemberSubscriptions = Mapping[str, MemberSubscription]
PartitionCounts = Mapping[UUID, int]
GroupAssignment = dict[str, set[TopicIdPartition]]
Assignor = Callable[[MemberSubscriptions, PartitionCounts], GroupAssignment]


def assign_uniformly(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """As even and as sticky as can be. `sizes`: the partitions of every topic that is claimed."""
    if len({claim.topics for claim in claims.values()}) == 1:
        return _assign_homogeneous(claims, sizes)
    return _assign_heterogeneous(claims, sizes)


def assign_ranges(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """Every topic is cut into ranges, and the members stand in the same order for each of them."""
    assignment: GroupAssignment = {member_id: set() for member_id in claims}
    # Instance ids outlive member ids: static members first, so that a restart moves nothing.
    order = sorted(claims, key=lambda m: (claims[m].instance_id is None, claims[m].instance_id or m))
    for topic, size in sizes.items():
        subscribers = [member_id for member_id in order if topic in claims[member_id].topics]
        quota, larger = divmod(size, len(subscribers))
        start = 0
        for rank, member_id in enumerate(subscribers):
            end = start + quota + (rank < larger)
            assignment[member_id].update((topic, index) for index in range(start, end))
            start = end
    return assignment


def _assign_homogeneous(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """All subscribe to the same: each gets its quota, and as many as needed get one more."""
    quota, larger = divmod(sum(sizes.values()), len(claims))
    assignment: GroupAssignment = {member_id: set() for member_id in sorted(claims)}
    free = set(_partitions(sizes))
    for member_id, kept in assignment.items():
        held = sorted(claims[member_id].held & free)
        kept.update(held[: quota + (larger > 0)])
        larger -= len(kept) > quota
        free -= kept
    needy = deque(member_id for member_id, kept in assignment.items() if len(kept) < quota)
    full = (member_id for member_id, kept in assignment.items() if len(kept) == quota)
    for partition in sorted(free):
        member_id = needy.popleft() if needy else next(full)
        assignment[member_id].add(partition)
        if len(assignment[member_id]) < quota:
            needy.append(member_id)
    return assignment


def _assign_heterogeneous(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """Not all subscribe to the same: what is free goes to the subscriber with the least, then partitions move from the
    loaded to the idle while that makes them more even. Each move makes the sum of squares smaller, so it ends."""
    assignment: GroupAssignment = {member_id: set() for member_id in sorted(claims)}
    subscribers = {topic: [m for m in assignment if topic in claims[m].topics] for topic in sizes}
    owner: dict[TopicIdPartition, str] = {}

    def idlest(topic: UUID) -> str:
        return min(subscribers[topic], key=lambda member_id: len(assignment[member_id]))

    def give(partition: TopicIdPartition, member_id: str) -> None:
        owner[partition] = member_id
        assignment[member_id].add(partition)

    for member_id, claim in claims.items():
        for partition in claim.held:
            topic, index = partition
            if topic in claim.topics and index < sizes[topic] and partition not in owner:
                give(partition, member_id)
    # Topics with few subscribers first: the others can still go round them.
    for topic in sorted(sizes, key=lambda topic: (len(subscribers[topic]), topic)):
        for index in range(sizes[topic]):
            if (topic, index) not in owner:
                give((topic, index), idlest(topic))
    is_moving = True
    while is_moving:
        is_moving = False
        for partition in sorted(owner):
            loaded, idle = owner[partition], idlest(partition[0])
            if len(assignment[loaded]) - len(assignment[idle]) >= 2:
                assignment[loaded].remove(partition)
                give(partition, idle)
                is_moving = True
    return assignment


def _partitions(sizes: PartitionCounts) -> Iterable[TopicIdPartition]:
    return ((topic, index) for topic, size in sizes.items() for index in range(size))


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
