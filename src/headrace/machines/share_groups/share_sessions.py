"""Share sessions (KIP-932): through a session, a member of a share group leases messages from a broker's partitions.

- A session lists the partitions that the member reads on this broker, so a request names only changes. It counts the
  requests, so lost and duplicate requests are detected.
- Epoch 0 opens a session and replaces an earlier one of the member; -1 closes it.
- Leases belong to the member, not to the session, but they are released when the session ends. `touched` are all
  partitions in which the member may have leases.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

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
    """All share sessions of one broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def begin_fetch(self, group_id: str, member_id: str, epoch: int, *, settles: bool) -> ShareSession:
        """Return the session for a fetch; `settles` if it also acknowledges messages. Raises with nothing changed."""
        if epoch != OPENING_EPOCH:
            return self._continue(group_id, member_id, epoch)
        if settles:
            raise InvalidRequest("a request that opens a share session cannot acknowledge messages")
        replaced = self._sessions.get((group_id, member_id))
        if replaced is None and len(self._sessions) >= self._sessions_max:
            raise ShareSessionLimitReached(f"this broker has the maximum of {self._sessions_max} share sessions")
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id)
        if replaced is not None:
            session.touched.update(replaced.touched)  # the member keeps its leases
        return session

    def begin_acknowledge(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        if epoch == OPENING_EPOCH:
            raise InvalidShareSessionEpoch("only a ShareFetch can open a share session")
        return self._continue(group_id, member_id, epoch)

    def is_present(self, session: ShareSession) -> bool:
        """Whether this is the current session of its member."""
        return self._sessions.get((session.group_id, session.member_id)) is session

    def end(self, session: ShareSession) -> None:
        """End the session. The caller must release its leases."""
        assert self.is_present(session)
        session.is_over = True
        del self._sessions[session.group_id, session.member_id]

    def _continue(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFound(f"member {member_id} of group {group_id} has no share session on this broker")
        if epoch == CLOSING_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(f"the share session expects epoch {session.epoch}, not {epoch}")
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session


class ShareSession(msgspec.Struct):
    group_id: str
    member_id: str
    epoch: int = 1
    """The epoch of the next request; already incremented for the request in progress."""
    is_over: bool = False
    partitions: dict[PartitionKey, None] = msgspec.field(default_factory=dict)
    touched: dict[PartitionKey, None] = msgspec.field(default_factory=dict)

    def add(self, partition: PartitionKey) -> None:
        self.partitions[partition] = None
        self.touched[partition] = None

    def forget(self, partition: PartitionKey) -> None:
        self.partitions.pop(partition, None)

    def in_rotation(self) -> list[PartitionKey]:
        """Return all partitions, beginning with a different one each time, so that none starves."""
        partitions = list(self.partitions)
        start = self.epoch % max(len(partitions), 1)
        return [*partitions[start:], *partitions[:start]]
