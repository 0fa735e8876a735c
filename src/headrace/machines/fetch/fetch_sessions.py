"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session lists the partitions that a client fetches. Those of which there may be something to say are
`ready`, in the order in which they are served; a fetch looks at these only, so that ten thousand idle
partitions cost nothing. The broker marks an entry idle when it has found nothing new in its partition, and
ready when the partition moves.

Invariants: every ready entry is in the session; a session in the cache has its id, any other has id 0;
the number of cached sessions never exceeds the slots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headrace.model.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMismatch,
    InvalidFetchSessionEpoch,
)

NO_SESSION = 0
FIRST_EPOCH = 0
FINAL_EPOCH = -1

_EPOCH_MAX = 2**31 - 1
_SEARCH_PAUSE_MS = 1_000

PartitionKey = tuple[UUID | str, int]


class FetchSessions:
    """The sessions of one broker; they share a limited number of slots."""

    def __init__(self, draw_id: Callable[[], int], slots_max: int = 1_000, evict_after_ms: int = 120_000) -> None:
        """`draw_id` gives random positive numbers below 2^31."""
        self._new_session_id = draw_id
        self._slots_max = slots_max
        self._evict_after_ms = evict_after_ms
        # The least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._next_search_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_cached(self) -> int:
        return sum(len(session.entries) for session in self._sessions.values())

    def begin(
        self,
        session_id: int,
        epoch: int,
        *,
        uses_topic_ids: bool,
        size: int,
        now_ms: int,
        privileged: bool = False,
    ) -> FetchSession:
        """The session of a fetch that names `size` partitions; `put` and `forget` what it names.

        Epoch 0 opens one (it has id 0 when there is no slot), -1 fetches without one; both close the session
        named. Any other epoch goes on with it. `privileged` is for followers, who evict consumers.
        """
        if epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self.close(session_id)
            session = FetchSession(uses_topic_ids, privileged, now_ms)
            if epoch == FIRST_EPOCH and self._has_slot(privileged, size, now_ms):
                self._open(session)
            return session
        found = self._sessions.get(session_id)
        if found is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {session_id}")
        if epoch != found.epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at {found.epoch}, not {epoch}")
        if uses_topic_ids != found.uses_topic_ids:
            raise FetchSessionTopicIdMismatch
        found.full = False
        found.used_ms = now_ms
        found.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return found

    def close_if_empty(self, session: FetchSession) -> None:
        """A session from which everything was forgotten is over; call it after the forgetting."""
        if not session.entries and not session.full:
            self.close(session.id)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.id = NO_SESSION
            session.closed = True

    def _open(self, session: FetchSession) -> None:
        session_id = self._new_session_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_session_id()
        session.id = session_id
        session.epoch = 1
        self._sessions[session_id] = session

    def _has_slot(self, privileged: bool, size: int, now_ms: int) -> bool:
        if len(self._sessions) < self._slots_max:
            return True
        victim = self._session_to_evict(privileged, size, now_ms)
        if victim is None:
            return False
        self.close(victim.id)
        return True

    def _session_to_evict(self, privileged: bool, size: int, now_ms: int) -> FetchSession | None:
        """One that nobody used for long, else the smallest of the old ones, if the new one is larger."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if now_ms - oldest.used_ms > self._evict_after_ms:
            return oldest
        if now_ms < self._next_search_ms:
            return None
        candidates = [
            session
            for session in self._sessions.values()
            if (privileged and not session.privileged) or now_ms - session.opened_ms > self._evict_after_ms
        ]
        smallest = min(candidates, key=FetchSession.eviction_rank, default=None)
        if smallest is not None and smallest.eviction_rank() < (privileged, size):
            return smallest
        # Clients without a session ask for one at every fetch; do not look through all slots each time.
        self._next_search_ms = now_ms + _SEARCH_PAUSE_MS
        return None


class FetchSession:
    __slots__ = (
        "closed",
        "entries",
        "epoch",
        "full",
        "id",
        "opened_ms",
        "privileged",
        "ready",
        "used_ms",
        "uses_topic_ids",
    )

    def __init__(self, uses_topic_ids: bool, privileged: bool, now_ms: int) -> None:
        self.id = NO_SESSION
        self.epoch = FINAL_EPOCH
        """What the next request must carry. It has moved on since `begin`: that fetch's answer is stale."""
        self.closed = False
        """It had a slot and lost it: whoever watches partitions for it may stop."""
        self.full = True
        """The fetch under way names all its partitions, and its answer must too."""
        self.uses_topic_ids = uses_topic_ids
        self.privileged = privileged
        self.opened_ms = now_ms
        self.used_ms = now_ms
        self.entries: dict[PartitionKey, FetchEntry] = {}
        self.ready: dict[FetchEntry, None] = {}

    def eviction_rank(self) -> tuple[bool, int]:
        return self.privileged, len(self.entries)

    def put(
        self,
        topic_id: UUID,
        topic: str,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
    ) -> FetchEntry:
        """Add the partition, or note the client's new position in it. Either way it is ready.

        In a new leader epoch, a follower starts without the high watermark of the old one. So the session forgets
        that it sent it, and the next response names the partition even if nothing moved.
        """
        key = (topic_id if self.uses_topic_ids else topic, partition)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = FetchEntry(self, topic_id, topic, partition)
        entry.fetch_offset = fetch_offset
        entry.max_bytes = max_bytes
        if current_leader_epoch != entry.current_leader_epoch:
            entry.sent_high_watermark = -1
        entry.current_leader_epoch = current_leader_epoch
        entry.last_fetched_epoch = last_fetched_epoch
        entry.log_start_offset = log_start_offset
        self.ready[entry] = None
        return entry

    def forget(self, topic_id: UUID, topic: str, partition: int) -> FetchEntry | None:
        entry = self.entries.pop((topic_id if self.uses_topic_ids else topic, partition), None)
        if entry is not None:
            entry.forgotten = True
            self.ready.pop(entry, None)
        return entry


class FetchEntry:
    """One partition of a session: what the client asked for, and what it was told last."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "forgotten",
        "handle",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
        "topic",
        "topic_id",
    )

    def __init__(self, session: FetchSession, topic_id: UUID, topic: str, partition: int) -> None:
        self.session = session
        self.topic_id = topic_id
        self.topic = topic
        self.partition = partition
        self.fetch_offset = -1
        self.max_bytes = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.forgotten = False
        self.handle: Any = None
        """The broker's own: the partition that it found, so that it need not look again."""

    @property
    def is_ready(self) -> bool:
        return self in self.session.ready

    def mark_ready(self) -> None:
        """There may be something to say: data, a moved watermark, an error."""
        if not self.forgotten:
            self.session.ready[self] = None

    def mark_idle(self) -> None:
        self.session.ready.pop(self, None)

    def answered(
        self,
        high_watermark: int,
        log_start_offset: int,
        error_code: int = 0,
        *,
        has_records: bool,
        diverges: bool = False,
    ) -> bool:
        """Note what the answer under way says of this partition. False: the client knows it, leave it out.

        `diverges`: it has a diverging epoch. A partition that had records goes to the end of the line, so that
        those behind it get their turn when the answer is limited in size.
        """
        news = (
            self.session.full
            or has_records
            or diverges
            or error_code != 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        # After an error the client must hear of the partition again, even if it is then as it was before. So must a
        # follower that truncates at a diverging epoch: it cannot use the high watermark and the log start offset of
        # that response, because the rest of its log may diverge too.
        is_usable = error_code == 0 and not diverges
        self.sent_high_watermark = high_watermark if is_usable else -1
        self.sent_log_start_offset = log_start_offset
        if has_records and self in self.session.ready:
            del self.session.ready[self]
            self.session.ready[self] = None
        return news
