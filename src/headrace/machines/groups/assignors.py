"""The server-side assignors of the consumer protocol (KIP-848). Pure.

- Every partition of a topic with subscribers is assigned to exactly one subscriber.
- An assignor is a function of the members' subscriptions and the partition counts, so all brokers compute the same
  assignment.
- `uniform` balances the number of partitions, and keeps partitions with their owners as far as that allows. `range`
  gives each member the same partition numbers of every topic, so topics with the same keys can be joined; it ignores
  former owners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

TopicIdPartition = tuple[UUID, int]


class MemberSubscription(msgspec.Struct, frozen=True):
    """The existing topics to which a member subscribes, and its previous assignment."""

    topics: frozenset[UUID]
    held: frozenset[TopicIdPartition] = frozenset()
    instance_id: str | None = None


MemberSubscriptions = Mapping[str, MemberSubscription]
PartitionCounts = Mapping[UUID, int]
GroupAssignment = dict[str, set[TopicIdPartition]]
Assignor = Callable[[MemberSubscriptions, PartitionCounts], GroupAssignment]


def assign_uniformly(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """Balanced, and as sticky as possible. `sizes` are the partition counts of all subscribed topics."""
    if len({claim.topics for claim in claims.values()}) == 1:
        return _assign_homogeneous(claims, sizes)
    return _assign_heterogeneous(claims, sizes)


def assign_ranges(claims: MemberSubscriptions, sizes: PartitionCounts) -> GroupAssignment:
    """Divide every topic into ranges, and assign them to the members in the same order for each topic."""
    assignment: GroupAssignment = {member_id: set() for member_id in claims}
    # Instance ids outlive member ids. Static members are first, so a restart of one moves no partitions.
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
    """All members have the same subscription: each gets its quota, and the remainder goes to some of them."""
    quota, larger = divmod(sum(sizes.values()), len(claims))
    assignment: GroupAssignment = {member_id: set() for member_id in sorted(claims)}
    free = {(topic, index) for topic, size in sizes.items() for index in range(size)}
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
    """The members have different subscriptions: each free partition goes to the subscriber with the fewest partitions.
    Then partitions move from members with many to members with few, while that improves the balance. Each move reduces
    the sum of squares, so this terminates."""
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
    # Topics with few subscribers first: partitions of the others can still compensate for them.
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


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
