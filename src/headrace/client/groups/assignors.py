"""How a group's leader shares out partitions. Pure: members and counts in, assignment out.

Every partition of a subscribed topic goes to exactly one member that subscribed to it. The same input gives
the same result on every member, whatever order it arrives in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.metadata import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """One member: the topics it wants, and the partitions it holds from the generation before."""

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1


ConsumerSubscriptions = Mapping[str, ConsumerSubscription]
PartitionCounts = Mapping[str, int]


def assign_range(members: ConsumerSubscriptions, counts: PartitionCounts) -> Assignment:
    """Per topic, consecutive partitions to each member: topics with equal counts line up on the same
    member.
    """
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
    """All partitions in order, dealt out to the members in turn.

    A member that did not subscribe is passed over.
    """
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
    """Even, with as few moves as that allows; a partition that moves is held back until its owner has let go.

    The owner sees that it has lost the partition, gives it up and joins again; the next round hands it on.
    """
    owners = _owners(members, counts)
    wanted = _balanced(members, _all_partitions(members, counts), owners)
    result: Assignment = {member: [] for member in members}
    for target, member in sorted(wanted.items()):
        if owners.get(target, member) == member:
            result[member].append(target)
    return result


@dataclass(frozen=True, slots=True)
class Assignor:
    """A way to share out, under the name that all members must know.

    Cooperative: members keep what they hold.
    """

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
    """Who holds what, by the members' own word.

    Of two who claim the same the later generation is believed.
    """
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
    """Start from the owners, give the rest to the least loaded, then move single partitions while that
    evens out.
    """
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
