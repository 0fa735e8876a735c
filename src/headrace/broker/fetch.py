"""Fetch, versions 4 to 18: read batches from the log and send them with sendfile.

A fetch reads the partitions that may have records. It responds if there is enough data (`min_bytes`) or an error;
otherwise it waits until a partition advances or `max_wait_ms` expires. In an incremental fetch session (since version
7) only partitions that advanced since the last fetch are read, and the response contains only changed partitions, so
ten thousand idle partitions cost nothing.

A response contains whole batches from the log file, beginning with the batch that contains the requested offset. The
first batch is always returned, whatever its size; otherwise a consumer with a small `max_bytes` could not make
progress.
"""

from __future__ import annotations

import asyncio

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.copying_rate import CopyingRate
from headrace.broker.partition import Partition
from headrace.broker.readings import Follower, Reading, copy_partition, is_joining, read_partition
from headrace.machines.fetch_sessions import FetchEntry, FetchSession, FetchSessions
from headrace.model.errors import HeadraceError, InvalidFetchSessionEpoch, UnsupportedCompressionType
from headrace.model.ids import ZERO_ID
from headrace.model.partition_record import NO_EPOCH
from headrace.runtime.clock import Clock
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)

_TOPIC_IDS_SINCE = 13
_PINNED_MAX = 100
"""The maximum number of partitions with records per response. A file slice keeps its file open until it is sent, and a
client may fetch more partitions at once than the process may open files."""
_ZSTD_SINCE = 10


class _Reader:
    """An entry of a fetch and its partition. While it watches, an advance of the partition marks the entry as ready and
    wakes the waiting fetch."""

    __slots__ = ("_copies", "_entry", "_is_watching", "_poll", "partition")

    def __init__(self, entry: FetchEntry, partition: Partition, poll: _Poll, *, copies: bool) -> None:
        self.partition = partition
        self._copies = copies
        self._entry = entry
        self._poll = poll
        self._is_watching = False

    def watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self.partition.watch(self, copies=self._copies)

    def unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self.partition.unwatch(self)

    def on_moved(self, new_bytes: int) -> None:
        self._entry.mark_ready()
        self._poll.on_moved(new_bytes)

    def on_committed(self) -> None:
        self._entry.mark_ready()


class _Poll:
    """The wait of a session: at most one fetch of a session waits at a time, and a later fetch ends the wait of an
    earlier one."""

    __slots__ = ("_bytes_wanted", "_future")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._bytes_wanted = 0

    async def wait(self, seconds: float, bytes_wanted: int) -> None:
        self.wake()
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        self._bytes_wanted = bytes_wanted
        timer = loop.call_later(seconds, self.wake)
        try:
            await future
        finally:
            timer.cancel()
            if self._future is future:
                self._future = None

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def on_moved(self, new_bytes: int) -> None:
        self._bytes_wanted -= new_bytes
        if self._bytes_wanted <= 0 or new_bytes == 0:
            self.wake()


class Fetch:
    def __init__(self, catalogue: Catalogue, sessions: FetchSessions, clock: Clock) -> None:
        self._catalogue = catalogue
        self._sessions = sessions
        self._clock = clock
        self._copying_rate = CopyingRate(lambda: catalogue.config)
        self._polls: dict[FetchSession, _Poll] = {}
        self._copying: dict[int, FetchSession] = {}  # sessions of followers by node id
        self._is_stopping = False

    async def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        follower = _follower(request)
        try:
            session = self._sessions.begin(
                request.session_id,
                request.session_epoch,
                uses_topic_ids=context.version >= _TOPIC_IDS_SINCE,
                size=sum(len(topic.partitions) for topic in request.topics),
                now_ms=self._clock.now_ms(),
                privileged=follower is not None,
            )
        except HeadraceError as error:
            return FetchResponse(error_code=error.code)
        if follower is not None:
            self._supersede(follower.node_id, session)
        poll = self._polls.get(session)
        if poll is None:
            poll = self._polls[session] = _Poll()
        try:
            self._update(session, request)
            return await self._collect(session, poll, request, follower, knows_zstd=context.version >= _ZSTD_SINCE)
        finally:
            if session.id == 0:
                self._forget(session)

    def sweep(self) -> None:
        """Release sessions that were closed or evicted."""
        for session in [session for session in self._polls if session.closed]:
            self._forget(session)

    def stop(self) -> None:
        """Answer all waiting fetches, because the broker is shutting down."""
        self._is_stopping = True
        for poll in self._polls.values():
            poll.wake()

    def _supersede(self, node_id: int, session: FetchSession) -> None:
        """End the earlier session of a follower, which has only one. A delayed fetch of the earlier session may still
        arrive after the follower has timed out, and would report an outdated position."""
        older = self._copying.get(node_id)
        if older is not None and older is not session:
            self._sessions.close(older.id)
        self._copying[node_id] = session

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        for topic in request.topics:
            for asked in topic.partitions:
                session.put(
                    topic.topic_id,
                    topic.topic,
                    asked.partition,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    asked.current_leader_epoch,
                    asked.last_fetched_epoch,
                    asked.log_start_offset,
                )
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                gone = session.forget(forgotten.topic_id, forgotten.topic, index)
                if gone is not None and gone.handle is not None:
                    gone.handle.unwatch()
        self._sessions.close_if_empty(session)

    async def _collect(
        self,
        session: FetchSession,
        poll: _Poll,
        request: FetchRequest,
        follower: Follower | None,
        *,
        knows_zstd: bool,
    ) -> FetchResponse:
        deadline = self._clock.monotonic() + request.max_wait_ms / 1000
        epoch = session.epoch
        idle: dict[FetchEntry, Reading] = {}  # entries without new records, unless they are read again
        while session.epoch == epoch:
            readings, size_bytes, is_urgent = self._read(session, poll, request, follower, knows_zstd=knows_zstd)
            left = deadline - self._clock.monotonic()
            is_over = size_bytes >= request.min_bytes or is_urgent or left <= 0 or self._is_stopping
            if session.id or not is_over:
                # Watch from here on, so that neither this fetch while it waits nor the next one of the session misses
                # an advance.
                for reading in readings:
                    if reading.entry.handle is not None:
                        reading.entry.handle.watch()
            for reading in readings:
                idle.pop(reading.entry, None)
            if is_over:
                await _load(readings)
                if session.epoch == epoch:
                    if follower is not None:
                        self._copying_rate.take(readings, follower, self._clock.monotonic())
                    return self._answer(session, [*readings, *idle.values()], counts=follower is None)
            for reading in readings:
                reading.release()
                if reading.is_exhausted:
                    idle[reading.entry] = reading
            if not is_over:
                if follower is not None:
                    left = min(left, self._copying_rate.wait_seconds(self._clock.monotonic()) or left)
                await poll.wait(left, request.min_bytes - size_bytes)
        # A later fetch of this session has overtaken this one, so this response would be outdated.
        return FetchResponse(error_code=InvalidFetchSessionEpoch.code)

    def _read(
        self,
        session: FetchSession,
        poll: _Poll,
        request: FetchRequest,
        follower: Follower | None,
        *,
        knows_zstd: bool,
    ) -> tuple[list[Reading], int, bool]:
        """Read all ready entries; return the results, their size, and whether the fetch must respond now."""
        readings: list[Reading] = []
        room = min(request.max_bytes, self._catalogue.config.fetch_max_bytes)
        size_bytes = 0
        is_urgent = False
        now = self._clock.monotonic()
        may_catch_up = follower is None or self._copying_rate.is_free(now)
        for entry in list(session.ready):
            try:
                partition = self._partition(entry, poll, copies=follower is not None)
                if not knows_zstd and partition.config.compression_type == "zstd":
                    raise UnsupportedCompressionType(
                        f"topic {partition.topic} uses zstd, which requires Fetch version {_ZSTD_SINCE} or newer"
                    )
                budget = min(entry.max_bytes, room - size_bytes)
                if follower is None:
                    may_exceed = size_bytes == 0
                    reading = read_partition(partition, entry, budget, request.isolation_level, may_exceed=may_exceed)
                else:
                    is_held_up = not may_catch_up and is_joining(partition, follower)
                    may_exceed = size_bytes == 0 and not is_held_up
                    budget = 0 if is_held_up else budget
                    reading = copy_partition(partition, entry, budget, follower, now, may_exceed=may_exceed)
                if len(readings) >= _PINNED_MAX:
                    reading.unpin()
            except HeadraceError as error:
                reading = Reading.refused(entry, error)
                is_urgent = True
            if reading.is_exhausted:
                entry.mark_idle()
            size_bytes += reading.size_bytes
            is_urgent = is_urgent or reading.data.diverging_epoch is not None
            readings.append(reading)
        return readings, size_bytes, is_urgent

    def _answer(self, session: FetchSession, readings: list[Reading], *, counts: bool) -> FetchResponse:
        response = FetchResponse(session_id=session.id)
        topics: dict[object, FetchableTopicResponse] = {}
        for reading in readings:
            if counts:
                reading.count()
            entry, data = reading.entry, reading.data
            is_changed = entry.answered(
                data.high_watermark,
                data.log_start_offset,
                data.error_code,
                has_records=reading.size_bytes > 0,
                diverges=data.diverging_epoch is not None,
            )
            if not (is_changed or session.full):
                continue
            key = entry.topic_id if session.uses_topic_ids else entry.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=entry.topic, topic_id=entry.topic_id)
                response.responses.append(topic)
            topic.partitions.append(data)
        return response

    def _partition(self, entry: FetchEntry, poll: _Poll, *, copies: bool) -> Partition:
        """Look up the current partition of an entry: topics and leaders may change during a session."""
        reader = entry.handle
        if reader is not None and reader.partition.is_leader:
            found: Partition = reader.partition
            return found
        if reader is not None:
            reader.unwatch()
            entry.handle = None
        if entry.topic_id != ZERO_ID:
            partition = self._catalogue.partition_by_id(entry.topic_id, entry.partition)
        else:
            partition = self._catalogue.partition(entry.topic, entry.partition)
        entry.handle = _Reader(entry, partition, poll, copies=copies)
        return partition

    def _forget(self, session: FetchSession) -> None:
        self._polls.pop(session, None)
        for entry in session.entries.values():
            if entry.handle is not None:
                entry.handle.unwatch()


def _follower(request: FetchRequest) -> Follower | None:
    """Return the follower that sent the request, or None for a consumer, which has no node id."""
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return Follower(state.replica_id, state.replica_epoch)
    return Follower(request.replica_id, NO_EPOCH) if request.replica_id >= 0 else None


async def _load(readings: list[Reading]) -> None:
    """Read data that is not in the page cache. The files are released even if that fails or is cancelled."""
    try:
        for index, reading in enumerate(readings):
            if reading.is_cold:
                await reading.load()
                if index >= _PINNED_MAX:
                    reading.unpin()
    except BaseException:
        for reading in readings:
            reading.release()
        raise
