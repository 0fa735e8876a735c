"""Share sessions (KIP-932): by which a member of a share group takes messages from the partitions that a broker leads.

A session lists the partitions that the member reads here, so that a request names only what changes, and counts the
requests: one that was lost, or comes twice, is noticed. Epoch 0 opens a session (and replaces the member's former one),
-1 closes it. What the member has leased is bound to the member and not to the session, but comes back when the session
ends: `touched` are all partitions where that may be.
"""

from __future__ import annotations

from uuid import UUID

from headrace.model.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

OPENING_EPOCH = 0
CLOSING_EPOCH = -1
SESSIONS_MAX = 2000

_EPOCH_MAX = 2**31 - 1

PartitionKey = tuple[UUID, int]


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin_fetch(self, group_id: str, member_id: str, epoch: int, *, settles: bool) -> ShareSession:
        """The session of a fetch; `settles`: it says what becomes of messages, too. Raises with nothing changed."""
        if epoch != OPENING_EPOCH:
            return self._go_on(group_id, member_id, epoch)
        if settles:
            raise InvalidRequest("the request that opens a share session cannot acknowledge anything")
        replaced_member = self._sessions.get((group_id, member_id))
        if replaced_member is None and len(self._sessions) >= self._sessions_max:
            raise ShareSessionLimitReached(f"there are {self._sessions_max} share sessions already")
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id)
        if replaced_member is not None:
            session.touched.update(replaced_member.touched)  # the same member still holds what it has leased
        return session

    def begin_acknowledge(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        if epoch == OPENING_EPOCH:
            raise InvalidShareSessionEpoch("a share session is opened by a fetch")
        return self._go_on(group_id, member_id, epoch)

    def is_present(self, session: ShareSession) -> bool:
        """Whether it is the one that its member has now."""
        return self._sessions.get((session.group_id, session.member_id)) is session

    def end(self, session: ShareSession) -> None:
        """It is over; what was leased in it is for the caller to give back."""
        assert self.is_present(session)
        session.is_over = True
        del self._sessions[session.group_id, session.member_id]

    def _go_on(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFound(f"member {member_id} of {group_id} has no share session here")
        if epoch == CLOSING_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(f"the share session is at {session.epoch}, not {epoch}")
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session


class ShareSession:
    __slots__ = ("epoch", "group_id", "is_over", "member_id", "partitions", "touched")

    def __init__(self, group_id: str, member_id: str) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 1
        """What the next request must carry. It has moved on since the request that is being served."""
        self.is_over = False
        self.partitions: dict[PartitionKey, None] = {}
        self.touched: dict[PartitionKey, None] = {}

    def add(self, partition: PartitionKey) -> None:
        self.partitions[partition] = None
        self.touched[partition] = None

    def forget(self, partition: PartitionKey) -> None:
        self.partitions.pop(partition, None)

    def in_rotation(self) -> list[PartitionKey]:
        """All its partitions, beginning with another one each time, so that none is starved by those before it."""
        partitions = list(self.partitions)
        if not partitions:
            return []
        start = self.epoch % len(partitions)
        return [*partitions[start:], *partitions[:start]]
