"""Runs one group like a broker: request tokens, a log of stored records, and a manual clock."""

from __future__ import annotations

import struct
from typing import Any

from msgspec.structs import replace

from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.group_state import (
    Effect,
    GroupConfig,
    GroupState,
    JoinRequest,
    LeavingMember,
    SendResponse,
    StoreMetadata,
    SyncRequest,
)
from headrace.wire.messages.groups import JoinGroupResponse, MemberResponse, SyncGroupResponse
from headrace.wire.state_records.offsets_records import GroupMetadataValue

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"range-metadata"),)


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + owned


class GroupDriver:
    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.now_ms = 1_000_000
        self.group = ClassicGroup("g", self.config, self.now_ms)
        self.stored: list[GroupMetadataValue | None] = []
        self.holds_stores = False
        self.held_tickets: list[int] = []
        self.responses: dict[int, JoinGroupResponse | SyncGroupResponse] = {}
        self.requested: set[int] = set()
        self._last_token = 0
        self._last_member = 0

    # What members do.

    def join(self, member_id: str = "", **changes: Any) -> int:
        """Send JoinGroup and return its token; time does not move, but what is due happens."""
        self._last_member += 1
        request = JoinRequest(
            member_id=member_id,
            new_member_id=f"m{self._last_member}",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=RANGE,
            client_id="client",
            client_host="/127.0.0.1",
        )
        token = self.token()
        self.run(self.group.join(token, replace(request, **changes), self.now_ms))
        self.settle()
        return token

    def sync(
        self,
        member_id: str,
        generation_id: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        token = self.token()
        generation_id = self.group.generation_id if generation_id is None else generation_id
        request = SyncRequest(
            member_id=member_id,
            generation_id=generation_id,
            assignments=assignments or {},
            instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
        )
        self.run(self.group.sync(token, request, self.now_ms))
        self.settle()
        return token

    def heartbeat(self, member_id: str, generation_id: int | None = None, instance_id: str | None = None) -> None:
        generation_id = self.group.generation_id if generation_id is None else generation_id
        self.group.heartbeat(member_id, generation_id, self.now_ms, instance_id=instance_id)

    def commit(self, member_id: str, generation_id: int | None = None, instance_id: str | None = None) -> None:
        generation_id = self.group.generation_id if generation_id is None else generation_id
        self.group.check_commit(member_id, generation_id, self.now_ms, instance_id=instance_id)

    def leave(self, *departures: LeavingMember | str) -> list[MemberResponse]:
        wanted = [LeavingMember(d) if isinstance(d, str) else d for d in departures]
        departed, effects = self.group.leave(wanted, self.now_ms)
        self.run(effects)
        self.settle()
        return departed

    # What the broker does.

    def token(self) -> int:
        self._last_token += 1
        self.requested.add(self._last_token)
        return self._last_token

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendResponse):
                assert isinstance(effect.token, int)
                assert effect.token in self.requested
                assert effect.token not in self.responses, "a request was answered twice"
                self.responses[effect.token] = effect.result
            else:
                self._store(effect)

    def _store(self, effect: StoreMetadata) -> None:
        self.stored.append(effect.snapshot)
        self.held_tickets.append(effect.ticket)
        if not self.holds_stores:
            self.release_stores()

    def release_stores(self, error_code: int = 0) -> None:
        tickets, self.held_tickets = self.held_tickets, []
        for ticket in tickets:
            if error_code:
                self.run(self.group.store_failed(ticket, error_code, self.now_ms))
            else:
                self.run(self.group.stored(ticket, self.now_ms))

    def settle(self) -> None:
        """Tick as long as something is due now."""
        for _ in range(10):
            deadline_ms = self.group.deadline()
            if deadline_ms is None or deadline_ms > self.now_ms:
                return
            self.run(self.group.tick(self.now_ms))
        raise AssertionError("the group is due again and again without time passing")

    def pass_time(self, elapsed_ms: int) -> None:
        """Let the time pass, ticking whenever it is due, as a punctual broker would."""
        end_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self.group.deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(deadline_ms, self.now_ms)
            self.settle()
        self.now_ms = end_ms

    def restart(self) -> None:
        """The broker stops and reads what was stored last."""
        snapshot = self.stored[-1]
        assert snapshot is not None
        self.group = ClassicGroup.restore("g", self.config, snapshot, self.now_ms)

    # What members see.

    def joined(self, token: int) -> JoinGroupResponse:
        response = self.responses[token]
        assert isinstance(response, JoinGroupResponse)
        return response

    def synced(self, token: int) -> SyncGroupResponse:
        response = self.responses[token]
        assert isinstance(response, SyncGroupResponse)
        return response

    def waits(self, token: int) -> bool:
        return token not in self.responses

    def state(self) -> GroupState:
        return self.group.state

    def stable(self, count: int, **changes: Any) -> list[str]:
        """A stable group of so many dynamic members, the leader first."""
        tokens = [self.join(**changes) for _ in range(count)]
        leader = self.joined(tokens[0]).member_id
        if count > 1:
            self.join(leader, **changes)
        member_ids = [self.joined(token).member_id for token in tokens]
        assert self.group.roster.leader == leader
        self.assign(member_ids)
        return member_ids

    def assign(self, member_ids: list[str]) -> None:
        for member_id in reversed(member_ids):
            self.sync(member_id, assignments={m: f"for {m}".encode() for m in member_ids})
        assert self.state() is GroupState.STABLE
