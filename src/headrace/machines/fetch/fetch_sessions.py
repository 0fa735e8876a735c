"""Incremental fetch sessions (KIP-227): a client lists its partitions once, and then only changes. Pure.

A session contains the partitions that a client fetches. Entries that may have news are `ready`, in the order in which
they are served. A fetch reads only these, so ten thousand idle partitions cost nothing. The broker marks an entry idle
when it finds no new records in its partition, and ready when the partition advances.

- Every ready entry is in the session.
- A cached session has its own id; any other session has id 0.
- The number of cached sessions never exceeds the number of slots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
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
    """The sessions of one broker, which share a limited number of slots. `new_session_id` returns random positive
    numbers below 2^31."""

    def __init__(
        self, new_session_id: Callable[[], int], slots_max: int = 1_000, evict_after_ms: int = 120_000
    ) -> None:
        self._new_session_id = new_session_id
        self._slots_max = slots_max
        self._evict_after_ms = evict_after_ms
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used one is first
        self._next_search_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

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
        """Return the session of a fetch that lists `size` partitions; the caller then applies the request to it with
        `put` and `forget`.

        Epoch 0 opens a session, with id 0 if there is no slot for it. Epoch -1 fetches without a session. Both close
        the given session. Any other epoch continues it. Sessions of followers are `privileged`: they evict consumers.
        """
        if epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self.close(session_id)
            session = FetchSession(uses_topic_ids, privileged, now_ms)
            if epoch == FIRST_EPOCH and self._has_slot(privileged, size, now_ms):
                self._open(session)
            return session
        found = self._sessions.get(session_id)
        if found is None:
            raise FetchSessionIdNotFound(f"fetch session {session_id} does not exist")
        if epoch != found.epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at epoch {found.epoch}, not {epoch}")
        if uses_topic_ids != found.uses_topic_ids:
            raise FetchSessionTopicIdMismatch
        found.full = False
        found.used_ms = now_ms
        found.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return found

    def close_if_empty(self, session: FetchSession) -> None:
        """Close a session whose last partition was removed."""
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
        """Return a session that was not used for long, or else the smallest old session if the new one is larger."""
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
        # Clients without a session request one with every fetch; do not search all slots each time.
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
        """The epoch of the next request. If it has changed since `begin`, the response of that fetch is outdated."""
        self.closed = False
        """The session lost its slot, so its partitions need not be watched."""
        self.full = True
        """The current fetch lists all its partitions, so its response must contain all of them."""
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
        """Add the partition, or update the client's position in it, and mark it ready.

        In a new leader epoch, a follower starts without the high watermark of the old epoch. So the session resets the
        sent high watermark, and the next response contains the partition even if nothing has changed.
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
    """One partition of a session: the client's position, and the state that the last response reported."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "forgotten",
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

    def mark_ready(self) -> None:
        """The partition may have news: records, a new high watermark, or an error."""
        if not self.forgotten:
            self.session.ready[self] = None

    def mark_idle(self) -> None:
        self.session.ready.pop(self, None)

    def record_response(
        self,
        high_watermark: int,
        log_start_offset: int,
        error_code: int = 0,
        *,
        has_records: bool,
        diverges: bool = False,
    ) -> bool:
        """Record the state that the current response reports, and return whether the response must contain the
        partition, because the client does not know this state yet.

        `diverges`: the response has a diverging epoch. A partition with records moves to the end of the ready entries,
        so that the others are served next if the size of the response is limited.
        """
        news = (
            self.session.full
            or has_records
            or diverges
            or error_code != 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        # After an error, the next response must contain the partition even if its state is the same as before. The same
        # holds for a follower that truncates at a diverging epoch: it cannot use the high watermark and the log start
        # offset of this response, because the rest of its log may diverge too.
        is_usable = error_code == 0 and not diverges
        self.sent_high_watermark = high_watermark if is_usable else -1
        self.sent_log_start_offset = log_start_offset
        if has_records and self in self.session.ready:
            del self.session.ready[self]
            self.session.ready[self] = None
        return news
