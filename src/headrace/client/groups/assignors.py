"""Partition assignors of the classic group protocol. Pure.

- Every partition of a subscribed topic is assigned to exactly one member that subscribes to it.
- The result does not depend on the order of the input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.metadata import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """The topics of one member, and the partitions that it owns from the previous generation."""

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1


ConsumerSubscriptions = Mapping[str, ConsumerSubscription]
PartitionCounts = Mapping[str, int]


def assign_range(members: ConsumerSubscriptions, counts: PartitionCounts) -> Assignment:
    """Assign consecutive partitions per topic: the same partitions of topics of equal size go to the same member."""
    result: Assignment = {member: [] for member in members}
    for topic in sorted(counts):
        takers = sorted(member for member, subscriber in members.items() if topic in subscriber.topics)
        if not takers:
            continue
        share, extra = divmod(counts[topic], len(takers))
        first = 0
        for position, member in enumerate(takers):
            last = first + share + (1 if position < extra else 0)
            result[member] += [TopicPartition(topic, partition) for partition in range(first, last)]
            first = last
    return result


def assign_round_robin(members: ConsumerSubscriptions, counts: PartitionCounts) -> Assignment:
    """Assign all partitions in order to the members in turn, skipping members that do not subscribe to the topic."""
    result: Assignment = {member: [] for member in members}
    order = sorted(members)
    turn = 0
    for target in _all_partitions(members, counts):
        while target.topic not in members[order[turn % len(order)]].topics:
            turn += 1
        result[order[turn % len(order)]].append(target)
        turn += 1
    return result


def assign_cooperative_sticky(members: ConsumerSubscriptions, counts: PartitionCounts) -> Assignment:
    """Balance with as few moves as possible. A partition that moves is assigned to nobody until its owner has revoked
    it: the owner notices that it has lost the partition, revokes it and rejoins; the next round assigns it."""
    owners = _owners(members, counts)
    wanted = _balanced(members, _all_partitions(members, counts), owners)
    result: Assignment = {member: [] for member in members}
    for target, member in sorted(wanted.items()):
        if owners.get(target, member) == member:
            result[member].append(target)
    return result


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor by its protocol name. Cooperative: members keep their partitions during a rebalance."""

    name: str
    assign: Callable[[ConsumerSubscriptions, PartitionCounts], Assignment] = field(repr=False)
    cooperative: bool = False


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("cooperative-sticky", assign_cooperative_sticky, cooperative=True),
    )
}


def _all_partitions(members: ConsumerSubscriptions, counts: PartitionCounts) -> list[TopicPartition]:
    wanted = {topic for subscriber in members.values() for topic in subscriber.topics}
    return [TopicPartition(topic, n) for topic in sorted(wanted & counts.keys()) for n in range(counts[topic])]


def _owners(members: ConsumerSubscriptions, counts: PartitionCounts) -> dict[TopicPartition, str]:
    """The owners as reported by the members. If two claim a partition, the later generation wins."""
    owners: dict[TopicPartition, str] = {}
    for member in sorted(members, key=lambda name: (members[name].generation, name)):
        subscriber = members[member]
        for target in subscriber.owned:
            if target.topic in subscriber.topics and target.partition < counts.get(target.topic, 0):
                owners[target] = member
    return owners


def _balanced(
    members: ConsumerSubscriptions, targets: Sequence[TopicPartition], owners: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Start from the owners, assign the rest to the least loaded members, then move single partitions while that
    improves the balance."""
    takers: dict[str, list[str]] = defaultdict(list)
    for member in sorted(members):
        for topic in set(members[member].topics):
            takers[topic].append(member)
    result = dict(owners)
    load = dict.fromkeys(sorted(members), 0)
    for member in owners.values():
        load[member] += 1
    for target in targets:
        if target not in result:
            member = min(takers[target.topic], key=lambda name: (load[name], name))
            result[target] = member
            load[member] += 1
    moved = True
    while moved:
        moved = False
        for target in targets:
            owner = result[target]
            least = min(takers[target.topic], key=lambda name: (load[name], name))
            if load[owner] - load[least] > 1:
                result[target] = least
                load[owner] -= 1
                load[least] += 1
                moved = True
    return result
