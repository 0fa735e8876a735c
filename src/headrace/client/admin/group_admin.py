"""Administer consumer groups: list and describe them, report their lag, move their offsets, delete them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

from headrace.client.cluster import Cluster
from headrace.client.errors import VersionMismatch, only_result, raise_for_code
from headrace.client.groups.group_membership import decode_assignment
from headrace.client.groups.offsets import END, START, Commit, commit, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import GroupIdNotFound, GroupNotEmpty, MalformedFrame
from headrace.wire.messages import consumer_groups as newer
from headrace.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

_CONSUMER = "consumer"
_DEAD = "Dead"  # brokers before DescribeGroups 6 return this for a missing group


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list; the state is empty if the broker is too old to return it."""

    group: str
    protocol_type: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class MemberView:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupView:
    group: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: Sequence[MemberView]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition; `committed` is None if it has committed nothing there."""

    target: TopicPartition
    committed: int | None
    start: int
    end: int
    member: MemberView | None

    @property
    def lag(self) -> int:
        """The number of records that the group has not read; without a commit, all records."""
        return max(0, self.end - max(self.start, self.start if self.committed is None else self.committed))


class GroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self) -> Sequence[GroupListing]:
        """Every group of every broker, by name."""
        view = await self._cluster.call_with_retries(lambda: self._cluster.refresh([]))
        found: dict[str, GroupListing] = {}
        for node_id in sorted(view.nodes):
            for listed in await self._cluster.call_with_retries(partial(self._list_at, node_id)):
                found[listed.group] = listed
        return [found[name] for name in sorted(found)]

    async def describe(self, group: str) -> GroupView:
        """One group of either protocol with its members; raises GroupIdNotFound."""
        try:
            return await self._cluster.call_with_retries(partial(self._describe_classic, group))
        except GroupIdNotFound as unknown:
            try:
                return await self._cluster.call_with_retries(partial(self._describe_consumer_protocol, group))
            except VersionMismatch:
                raise unknown from None

    async def delete(self, group: str) -> None:
        """Delete a group and its offsets; it must have no members."""

        async def attempt() -> None:
            response: DeleteGroupsResponse = await self._cluster.call_coordinator(
                group, DeleteGroupsRequest(groups_names=[group])
            )
            for described in response.results:
                self._cluster.raise_for_coordinator(group, described.error_code)

        await self._cluster.call_with_retries(attempt)

    async def lag(self, group: str) -> Sequence[PartitionLag]:
        """The group's lag in every partition that it has committed to or is assigned, in order."""
        view = await self.describe(group)
        commits = await committed(self._cluster, group)
        holders = {target: member for member in view.members for target in member.partitions}
        return await self._lags(await self._existing({*commits, *holders}), commits, holders)

    async def positions(self, group: str, targets: Set[TopicPartition] | None = None) -> Sequence[PartitionLag]:
        """The group's lag in these partitions, or in all that it has committed to; the group need not exist."""
        commits = await committed(self._cluster, group)
        chosen = await self._existing(set(commits)) if targets is None else sorted(targets)
        return await self._lags(chosen, commits, {})

    async def check_empty(self, group: str) -> None:
        """Raise GroupNotEmpty, naming the members; a group that does not exist has none."""
        try:
            members = (await self.describe(group)).members
        except GroupIdNotFound:
            return
        if members:
            who = ", ".join(f"{member.member_id} at {member.host}" for member in members)
            raise GroupNotEmpty(f"group {group!r} has members: {who}")

    async def move(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for the group; it must have no members."""
        await self.check_empty(group)
        await commit(self._cluster, group, {target: Commit(offset) for target, offset in offsets.items()})

    async def _describe_classic(self, group: str) -> GroupView:
        request = DescribeGroupsRequest(groups=[group])
        response: DescribeGroupsResponse = await self._cluster.call_coordinator(group, request)
        described = only_result(response.groups)
        self._cluster.raise_for_coordinator(group, described.error_code, described.error_message)
        if described.group_state == _DEAD:
            raise GroupIdNotFound(f"there is no group {group!r}")
        return GroupView(
            group=described.group_id,
            state=described.group_state,
            protocol_type=described.protocol_type,
            assignor=described.protocol_data,
            coordinator=await self._cluster.coordinator(group),
            members=[_member(member) for member in described.members],
        )

    async def _describe_consumer_protocol(self, group: str) -> GroupView:
        request = newer.ConsumerGroupDescribeRequest(group_ids=[group])
        response: newer.ConsumerGroupDescribeResponse = await self._cluster.call_coordinator(group, request)
        described = only_result(response.groups)
        self._cluster.raise_for_coordinator(group, described.error_code, described.error_message)
        return GroupView(
            group=described.group_id,
            state=described.group_state,
            protocol_type=_CONSUMER,
            assignor=described.assignor_name,
            coordinator=await self._cluster.coordinator(group),
            members=[_consumer_protocol_member(member) for member in described.members],
        )

    async def _lags(
        self,
        targets: Sequence[TopicPartition],
        commits: Mapping[TopicPartition, Commit],
        holders: Mapping[TopicPartition, MemberView],
    ) -> Sequence[PartitionLag]:
        starts = await find_offsets(self._cluster, dict.fromkeys(targets, START))
        ends = await find_offsets(self._cluster, dict.fromkeys(targets, END))
        return [
            PartitionLag(
                target,
                commits[target].offset if target in commits else None,
                starts[target].offset,
                ends[target].offset,
                holders.get(target),
            )
            for target in targets
        ]

    async def _existing(self, targets: Set[TopicPartition]) -> Sequence[TopicPartition]:
        names = {target.topic for target in targets}
        topics = (await self._cluster.call_with_retries(lambda: self._cluster.refresh(names))).topics
        return sorted(t for t in targets if t.topic in topics and t.partition < len(topics[t.topic].partitions))

    async def _list_at(self, node_id: int) -> Sequence[GroupListing]:
        response: ListGroupsResponse = await self._cluster.call(ListGroupsRequest(), node_id=node_id)
        raise_for_code(response.error_code)
        return [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]


def _member(described: DescribedGroupMember) -> MemberView:
    try:
        partitions = sorted(decode_assignment(described.member_assignment)) if described.member_assignment else []
    except MalformedFrame:
        partitions = []  # the group uses an assignment format that is not Kafka's
    return MemberView(
        described.member_id, described.group_instance_id, described.client_id, described.client_host, partitions
    )


def _consumer_protocol_member(described: newer.ConsumerGroupMember) -> MemberView:
    partitions = sorted(
        TopicPartition(topic.topic_name, partition)
        for topic in described.assignment.topic_partitions
        for partition in topic.partitions
    )
    return MemberView(
        described.member_id, described.instance_id, described.client_id, described.client_host, partitions
    )
