"""When a member of a consumer group is removed if it does nothing.

session     it sends no heartbeat
revocation  it does not give up the partitions that it must
join        classic protocol: it was told of a rebalance and sends no JoinGroup
sync        classic protocol: it was answered its JoinGroup and sends no SyncGroup
"""

from __future__ import annotations


class MemberDeadlines:
    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.revocations: dict[str, int] = {}
        self.joins: dict[str, int] = {}
        self.syncs: dict[str, int] = {}

    def earliest(self) -> int | None:
        return min((deadline_ms for kind in self._kinds() for deadline_ms in kind.values()), default=None)

    def late(self, now_ms: int) -> list[str]:
        """The members of whom a deadline has passed."""
        return list(
            dict.fromkeys(
                member_id for kind in self._kinds() for member_id, deadline_ms in kind.items() if deadline_ms <= now_ms
            )
        )

    def forget(self, member_id: str) -> None:
        for kind in self._kinds():
            kind.pop(member_id, None)

    def _kinds(self) -> tuple[dict[str, int], ...]:
        return self.sessions, self.revocations, self.joins, self.syncs
