"""Any order of requests, time, slow or failing stores and restarts preserves the invariants of a group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.machines.groups.group_driver import GroupDriver, subscription

from headrace.machines.groups.group_state import GroupConfig, GroupState, LeavingMember
from headrace.model.errors import (
    FencedInstanceId,
    IllegalGeneration,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.messages.groups import JoinGroupResponse

REFUSALS = (UnknownMemberId, IllegalGeneration, FencedInstanceId, RebalanceInProgress)
A, B, C = ("a", subscription("t")), ("b", subscription("t")), ("b", subscription("t", "u"))
protocols = st.sampled_from([(A,), (A, B), (B, A), (C,), (C, A)])
instance_ids = st.sampled_from([None, None, "i", "j"])
positions = st.integers(0, 7)


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 3, 100]))
    def start(self, delay_ms: int, max_size: int) -> None:
        self.driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=delay_ms, max_size=max_size))
        self.known: list[str] = ["stranger"]
        self.lost: set[int] = set()
        self.generation_id = 0

    def member(self, position: int) -> str:
        """A member id that was returned at some time, perhaps long ago."""
        return self.known[-1 - position % len(self.known)]

    def learn(self) -> None:
        for response in self.driver.responses.values():
            if isinstance(response, JoinGroupResponse) and response.member_id and response.member_id not in self.known:
                self.known.append(response.member_id)

    @rule(protocols=protocols, instance_id=instance_ids, require=st.booleans(), skips=st.booleans())
    def new_member_joins(
        self, protocols: tuple[tuple[str, bytes], ...], instance_id: str | None, require: bool, skips: bool
    ) -> None:
        self.driver.join(
            protocols=protocols,
            instance_id=instance_id,
            require_known_member_id=require,
            skips_assignment=skips,
        )
        self.learn()

    @rule(position=positions, protocols=protocols, instance_id=instance_ids)
    def member_rejoins(self, position: int, protocols: tuple[tuple[str, bytes], ...], instance_id: str | None) -> None:
        self.driver.join(self.member(position), protocols=protocols, instance_id=instance_id)
        self.learn()

    @rule()
    def all_members_rejoin(self) -> None:
        for member in self.driver.group.describe().members:
            self.driver.join(member.member_id, instance_id=member.group_instance_id, protocols=(A, B))
        self.learn()

    @rule(position=positions)
    def member_syncs(self, position: int) -> None:
        self.driver.sync(self.member(position), assignments={m: m.encode() for m in self.known})

    @rule()
    def all_members_sync(self) -> None:
        for member in self.driver.group.describe().members:
            self.driver.sync(member.member_id, assignments={m: m.encode() for m in self.known})

    @rule(position=positions)
    def member_sends_heartbeat(self, position: int) -> None:
        member_ids = {member.member_id for member in self.driver.group.describe().members}
        try:
            self.driver.heartbeat(self.member(position))
        except REFUSALS:
            return
        assert self.member(position) in member_ids

    @rule(position=positions, age=st.integers(1, 3))
    def old_generation_is_rejected(self, position: int, age: int) -> None:
        member_id, old = self.member(position), self.driver.group.generation_id - age
        token = self.driver.sync(member_id, old)
        assert self.driver.synced(token).error_code in (UnknownMemberId.code, IllegalGeneration.code)
        with pytest.raises((UnknownMemberId, IllegalGeneration)):
            self.driver.heartbeat(member_id, old)
        if old >= 0:
            with pytest.raises((UnknownMemberId, IllegalGeneration)):
                self.driver.commit(member_id, old)

    @rule(position=positions, instance_id=instance_ids)
    def member_leaves(self, position: int, instance_id: str | None) -> None:
        self.driver.leave(LeavingMember(self.member(position)), LeavingMember("", instance_id))

    @rule(elapsed_ms=st.sampled_from([1, 2_999, 3_000, 9_999, 10_000, 60_000, 300_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.driver.pass_time(elapsed_ms)

    @rule(elapsed_ms=st.sampled_from([5_000, 30_000]))
    def broker_handles_deadlines_late(self, elapsed_ms: int) -> None:
        self.driver.now_ms += elapsed_ms
        self.driver.settle()

    @rule()
    def stores_are_held(self) -> None:
        self.driver.holds_stores = True

    @precondition(lambda self: self.driver.holds_stores)
    @rule(failed=st.booleans())
    def held_stores_complete(self, failed: bool) -> None:
        self.driver.holds_stores = False
        self.driver.release_stores(NotCoordinator.code if failed else 0)
        self.driver.settle()

    @precondition(lambda self: self.driver.stored and not self.driver.holds_stores)
    @rule()
    def the_broker_restarts(self) -> None:
        self.lost |= self.driver.requested - self.driver.responses.keys()
        self.driver.restart()
        # A generation that was not stored is lost, but it had no assignment either; its members join again.
        self.generation_id = min(self.generation_id, self.driver.group.generation_id)

    @invariant()
    def every_request_waits_once_or_has_a_response(self) -> None:
        roster = self.driver.group.roster
        waiting = Counter(
            token for member in roster for token in (member.join_token, member.sync_token) if token is not None
        )
        assert waiting == Counter(self.driver.requested - self.driver.responses.keys() - self.lost)
        assert roster.joined_count == sum(member.join_token is not None for member in roster)

    @invariant()
    def the_leader_is_a_member(self) -> None:
        roster = self.driver.group.roster
        assert (roster.leader in roster.members) if roster.members else (roster.leader is None)
        assert {m.instance_id: m.member_id for m in roster if m.instance_id} == roster.member_id_of
        assert roster.unsynced <= roster.members.keys()
        assert not roster.pending.keys() & roster.members.keys()

    @invariant()
    def generations_never_go_back(self) -> None:
        assert self.driver.group.generation_id >= self.generation_id
        self.generation_id = self.driver.group.generation_id

    @invariant()
    def group_without_members_is_empty_or_waits(self) -> None:
        group = self.driver.group
        if group.roster.members:
            assert group.state is not GroupState.EMPTY
        elif group.state is not GroupState.EMPTY:
            assert group.state is GroupState.PREPARING_REBALANCE
            assert group.is_first or group.roster.pending

    @invariant()
    def every_wait_has_a_deadline_in_the_future(self) -> None:
        group = self.driver.group
        earliest_ms, wake_ms = group.earliest_deadline_ms(), group.deadline()
        if earliest_ms is not None:
            assert wake_ms is not None
            assert self.driver.now_ms < wake_ms <= earliest_ms
        assert all(member.session_deadline_ms is not None or member.is_waiting for member in group.roster)
        assert (group.state is GroupState.PREPARING_REBALANCE) == (group.join_deadline_ms is not None)
        if group.state is GroupState.COMPLETING_REBALANCE and group.roster.unsynced:
            assert group.sync_deadline_ms is not None

    @invariant()
    def all_members_support_the_protocol(self) -> None:
        group = self.driver.group
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert all(group.protocol_name in dict(member.protocols) for member in group.roster)
            assert len({member.member_id for member in group.roster}) <= group.config.max_size

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.holds_stores = False
        self.driver.release_stores()
        self.driver.pass_time(1_000_000)
        assert self.driver.group.has_no_members, "a group whose members have gone becomes empty"
        assert self.driver.requested == self.driver.responses.keys() | self.lost


GroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestGroupMachine = GroupMachine.TestCase
