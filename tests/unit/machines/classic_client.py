"""A client that uses the classic protocol in a consumer group, as Kafka's clients do."""

from __future__ import annotations

from typing import Any

from tests.unit.machines.groups.consumer_group_driver import REBALANCE_MS, SESSION_MS, ConsumerGroupDriver

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.classic_members import ClassicMembers, named_partitions
from headrace.machines.groups.group_state import GroupConfig, JoinRequest, LeavingMember, SyncRequest
from headrace.model.errors import IllegalGeneration, MemberIdRequired, RebalanceInProgress, UnknownMemberId
from headrace.wire.messages.groups import JoinGroupResponse, SyncGroupResponse
from headrace.wire.state_records.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_assignment,
    encode_subscription,
)
from headrace.wire.state_records.consumer_protocol import NamedTopicPartitions as NamedPartitions

LOST = UnknownMemberId, IllegalGeneration
VERSION = 1
PROTOCOL = "range"


class ClassicClient:
    """One that `is_cooperative` gives up only what it must, another one everything before it joins."""

    def __init__(
        self, driver: ConsumerGroupDriver, name: str, *topics: str, is_cooperative: bool = False, **more: Any
    ) -> None:
        self.driver = driver
        self.name = name
        self.id = ""
        self.epoch = -1
        self.topics = frozenset(topics)
        self.regex: str | None = None
        self.is_cooperative = is_cooperative
        self.more = {"instance_id": None, **more}
        self.owned: set[TopicIdPartition] = set()
        self.wanted: set[TopicIdPartition] = set()
        self._ids = 0

    @property
    def is_member(self) -> bool:
        member_metadata = self.driver.state.metadata_by_member.get(self.id)
        return member_metadata is not None and member_metadata.classic is not None

    def request(self, **changes: Any) -> JoinRequest:
        owned: dict[str, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            if topic_id in self.driver.view.names:
                owned.setdefault(self.driver.view.names[topic_id], []).append(index)
        subscription = ConsumerProtocolSubscription(
            topics=sorted(self.topics),
            owned_partitions=[NamedPartitions(topic=name, partitions=indexes) for name, indexes in owned.items()],
        )
        fields: dict[str, Any] = {
            "member_id": self.id,
            "new_member_id": f"{self.name}-{self._ids}",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": ((PROTOCOL, encode_subscription(subscription, VERSION)),),
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "require_known_member_id": True,
            **self.more,
            **changes,
        }
        return JoinRequest(**fields)

    def join(self, **changes: Any) -> JoinGroupResponse:
        if not self.is_cooperative:
            self.owned = set()
        driver, members = self.driver, ClassicMembers(self.driver.group)
        try:
            join = members.join(self.request(**changes), GroupConfig(), driver.view)
        except MemberIdRequired:
            self.id = f"{self.name}-{self._ids}"
            join = members.join(self.request(**changes), GroupConfig(), driver.view)
        driver.store(join.events)
        assert vars(driver.state) == vars(join.state)
        members.joined(join.result.member_id, driver.now_ms)
        self.id, self.epoch = join.result.member_id, join.result.generation_id
        return join.result

    def sync(self) -> SyncGroupResponse:
        members = ClassicMembers(self.driver.group)
        request = SyncRequest(member_id=self.id, generation_id=self.epoch, instance_id=self.more["instance_id"])
        response = members.sync(request, self.driver.view, self.driver.now_ms)
        assigned = decode_assignment(response.assignment).assigned_partitions
        self.wanted = set(named_partitions(assigned, self.driver.view))
        self.owned |= self.wanted
        return response

    def heartbeat(self) -> None:
        members = ClassicMembers(self.driver.group)
        members.heartbeat(self.id, self.epoch, self.driver.now_ms, instance_id=self.more["instance_id"])

    def beat(self, *, has_response: bool = True, is_full: bool = False) -> None:
        """Send a heartbeat; join again if the response, `is_full` or a new client requires it.

        Without `has_response` the client does not sync. A client that was removed releases all its partitions.
        """
        try:
            try:
                if self.epoch >= 0:
                    self.heartbeat()
                if self.epoch < 0 or is_full:
                    raise RebalanceInProgress
            except RebalanceInProgress:
                self.join()
                if has_response:
                    self.sync()
        except RebalanceInProgress:
            return
        except LOST:
            self._ids += 1
            self.id, self.epoch, self.owned, self.wanted = "", -1, set(), set()

    def revoke(self) -> None:
        self.owned &= self.wanted

    def leave(self, epoch: int = -1) -> None:
        """With another `epoch` it only stops: no static member that uses the classic protocol says that it leaves."""
        if epoch == -1:
            departed, removed = ClassicMembers(self.driver.group).departing([LeavingMember(self.id)])
            assert [one.error_code for one in departed] == [0]
            self.driver.store(self.driver.group.remove(removed, self.driver.view))
        self.owned, self.wanted = set(), set()
