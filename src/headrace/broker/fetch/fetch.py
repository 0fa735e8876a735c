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

from headrace.broker.fetch.fetched_partition import (
    FetchedPartition,
    FollowerIdentity,
    is_out_of_sync,
    read_for_follower,
    read_partition,
)
from headrace.broker.handlers import RequestContext
from headrace.broker.partition import Partition
from headrace.broker.replication.replication_throttle import ReplicationThrottle
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.fetch.fetch_sessions import FetchEntry, FetchSession, FetchSessions
from headrace.model.errors import HeadraceError, InvalidFetchSessionEpoch, UnsupportedCompressionType
from headrace.model.ids import ZERO_ID
from headrace.model.registry_records import NO_EPOCH
from headrace.runtime.clock import Clock
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse

_TOPIC_IDS_SINCE = 13
_PINNED_MAX = 100
"""The maximum number of partitions with records per response. A file slice keeps its file open until it is sent, and a
client may fetch more partitions at once than the process may open files."""
_ZSTD_SINCE = 10


class _EntryWatcher:
    """An entry of a session and its partition. While it watches, an advance of the partition marks the entry as ready
    and wakes the waiting fetch."""

    __slots__ = ("_delayed_fetch", "_entry", "_is_follower", "_is_watching", "partition")

    def __init__(
        self, entry: FetchEntry, partition: Partition, delayed_fetch: _DelayedFetch, *, is_follower: bool
    ) -> None:
        self.partition = partition
        self._entry = entry
        self._delayed_fetch = delayed_fetch
        self._is_follower = is_follower
        self._is_watching = False

    def watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self.partition.watch(self, is_follower=self._is_follower)

    def unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self.partition.unwatch(self)

    def on_data_available(self, new_bytes: int) -> None:
        self._entry.mark_ready()
        self._delayed_fetch.on_data_available(new_bytes)

    def on_high_watermark(self) -> None:
        self._entry.mark_ready()


class _DelayedFetch:
    """The wait of a session, and the watchers of its partitions. At most one fetch of a session waits at a time; a
    later fetch ends the wait of an earlier one."""

    __slots__ = ("_bytes_wanted", "_future", "session", "watchers")

    def __init__(self, session: FetchSession) -> None:
        self.session = session
        self.watchers: dict[FetchEntry, _EntryWatcher] = {}
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

    def unwatch(self, entry: FetchEntry) -> None:
        watcher = self.watchers.pop(entry, None)
        if watcher is not None:
            watcher.unwatch()

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def on_data_available(self, new_bytes: int) -> None:
        self._bytes_wanted -= new_bytes
        if self._bytes_wanted <= 0 or new_bytes == 0:
            self.wake()


class FetchHandler:
    def __init__(self, catalogue: Catalogue, sessions: FetchSessions, clock: Clock) -> None:
        self._catalogue = catalogue
        self._sessions = sessions
        self._clock = clock
        self._replication_throttle = ReplicationThrottle(lambda: catalogue.config)
        self._delayed_fetches: dict[FetchSession, _DelayedFetch] = {}
        self._follower_sessions: dict[int, FetchSession] = {}  # by node id
        self._is_stopping = False

    async def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        follower = _follower_identity(request)
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
        delayed_fetch = self._delayed_fetches.get(session)
        if delayed_fetch is None:
            delayed_fetch = self._delayed_fetches[session] = _DelayedFetch(session)
        try:
            self._update(delayed_fetch, request)
            return await self._collect(delayed_fetch, request, follower, knows_zstd=context.version >= _ZSTD_SINCE)
        finally:
            if session.id == 0:
                self._forget(session)

    def sweep(self) -> None:
        """Release sessions that were closed or evicted."""
        for session in [session for session in self._delayed_fetches if session.closed]:
            self._forget(session)

    def stop(self) -> None:
        """Respond to all waiting fetches, because the broker is shutting down."""
        self._is_stopping = True
        for delayed_fetch in self._delayed_fetches.values():
            delayed_fetch.wake()

    def _supersede(self, node_id: int, session: FetchSession) -> None:
        """End the earlier session of a follower, which has only one. A delayed fetch of the earlier session may still
        arrive after the follower has timed out, and would report an outdated position."""
        older = self._follower_sessions.get(node_id)
        if older is not None and older is not session:
            self._sessions.close(older.id)
        self._follower_sessions[node_id] = session

    def _update(self, delayed_fetch: _DelayedFetch, request: FetchRequest) -> None:
        session = delayed_fetch.session
        for topic in request.topics:
            for requested in topic.partitions:
                session.put(
                    topic.topic_id,
                    topic.topic,
                    requested.partition,
                    requested.fetch_offset,
                    requested.partition_max_bytes,
                    requested.current_leader_epoch,
                    requested.last_fetched_epoch,
                    requested.log_start_offset,
                )
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                entry = session.forget(forgotten.topic_id, forgotten.topic, index)
                if entry is not None:
                    delayed_fetch.unwatch(entry)
        self._sessions.close_if_empty(session)

    async def _collect(
        self,
        delayed_fetch: _DelayedFetch,
        request: FetchRequest,
        follower: FollowerIdentity | None,
        *,
        knows_zstd: bool,
    ) -> FetchResponse:
        session = delayed_fetch.session
        deadline = self._clock.monotonic() + request.max_wait_ms / 1000
        epoch = session.epoch
        idle: dict[FetchEntry, FetchedPartition] = {}  # entries without new records, unless they are read again
        while session.epoch == epoch:
            fetched, size_bytes, is_urgent = self._read(delayed_fetch, request, follower, knows_zstd=knows_zstd)
            left = deadline - self._clock.monotonic()
            is_over = size_bytes >= request.min_bytes or is_urgent or left <= 0 or self._is_stopping
            if session.id or not is_over:
                # Watch from here on, so that neither this fetch while it waits nor the next one of the session misses
                # an advance.
                for fetched_partition in fetched:
                    watcher = delayed_fetch.watchers.get(fetched_partition.entry)
                    if watcher is not None:
                        watcher.watch()
            for fetched_partition in fetched:
                idle.pop(fetched_partition.entry, None)
            if is_over:
                await _load_cold_reads(fetched)
                if session.epoch == epoch:
                    if follower is not None:
                        self._replication_throttle.take(fetched, follower, self._clock.monotonic())
                    return self._respond(session, [*fetched, *idle.values()], counts=follower is None)
            for fetched_partition in fetched:
                fetched_partition.release()
                if fetched_partition.is_exhausted:
                    idle[fetched_partition.entry] = fetched_partition
            if not is_over:
                if follower is not None:
                    left = min(left, self._replication_throttle.wait_seconds(self._clock.monotonic()) or left)
                await delayed_fetch.wait(left, request.min_bytes - size_bytes)
        # A later fetch of this session has overtaken this one, so this response would be outdated.
        return FetchResponse(error_code=InvalidFetchSessionEpoch.code)

    def _read(
        self,
        delayed_fetch: _DelayedFetch,
        request: FetchRequest,
        follower: FollowerIdentity | None,
        *,
        knows_zstd: bool,
    ) -> tuple[list[FetchedPartition], int, bool]:
        """Read all ready entries; return the results, their size, and whether the fetch must respond now."""
        fetched: list[FetchedPartition] = []
        room = min(request.max_bytes, self._catalogue.config.fetch_max_bytes)
        size_bytes = 0
        is_urgent = False
        now = self._clock.monotonic()
        may_catch_up = follower is None or self._replication_throttle.is_free(now)
        for entry in list(delayed_fetch.session.ready):
            try:
                partition = self._partition(entry, delayed_fetch, is_follower=follower is not None)
                if not knows_zstd and partition.config.compression_type == "zstd":
                    raise UnsupportedCompressionType(
                        f"topic {partition.topic} uses zstd, which requires Fetch version {_ZSTD_SINCE} or newer"
                    )
                budget = min(entry.max_bytes, room - size_bytes)
                if follower is None:
                    may_exceed = size_bytes == 0
                    fetched_partition = read_partition(
                        partition, entry, budget, request.isolation_level, may_exceed=may_exceed
                    )
                else:
                    is_throttled = not may_catch_up and is_out_of_sync(partition, follower)
                    may_exceed = size_bytes == 0 and not is_throttled
                    budget = 0 if is_throttled else budget
                    fetched_partition = read_for_follower(
                        partition, entry, budget, follower, now, may_exceed=may_exceed
                    )
                if len(fetched) >= _PINNED_MAX:
                    fetched_partition.unpin()
            except HeadraceError as error:
                watcher = delayed_fetch.watchers.get(entry)
                fetched_partition = FetchedPartition.failed(
                    entry, error, None if watcher is None else watcher.partition
                )
                is_urgent = True
            if fetched_partition.is_exhausted:
                entry.mark_idle()
            size_bytes += fetched_partition.size_bytes
            is_urgent = is_urgent or fetched_partition.data.diverging_epoch is not None
            fetched.append(fetched_partition)
        return fetched, size_bytes, is_urgent

    def _respond(self, session: FetchSession, fetched: list[FetchedPartition], *, counts: bool) -> FetchResponse:
        response = FetchResponse(session_id=session.id)
        topics: dict[object, FetchableTopicResponse] = {}
        for fetched_partition in fetched:
            if counts:
                fetched_partition.count()
            entry, data = fetched_partition.entry, fetched_partition.data
            is_changed = entry.record_response(
                data.high_watermark,
                data.log_start_offset,
                data.error_code,
                has_records=fetched_partition.size_bytes > 0,
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

    def _partition(self, entry: FetchEntry, delayed_fetch: _DelayedFetch, *, is_follower: bool) -> Partition:
        """Look up the current partition of an entry: topics and leaders may change during a session."""
        watcher = delayed_fetch.watchers.get(entry)
        if watcher is not None and watcher.partition.is_leader:
            return watcher.partition
        delayed_fetch.unwatch(entry)
        if entry.topic_id != ZERO_ID:
            partition = self._catalogue.partition_by_id(entry.topic_id, entry.partition)
        else:
            partition = self._catalogue.partition(entry.topic, entry.partition)
        delayed_fetch.watchers[entry] = _EntryWatcher(entry, partition, delayed_fetch, is_follower=is_follower)
        return partition

    def _forget(self, session: FetchSession) -> None:
        delayed_fetch = self._delayed_fetches.pop(session, None)
        if delayed_fetch is not None:
            for watcher in delayed_fetch.watchers.values():
                watcher.unwatch()


def _follower_identity(request: FetchRequest) -> FollowerIdentity | None:
    """Return the follower that sent the request, or None for a consumer, which has no node id."""
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return FollowerIdentity(state.replica_id, state.replica_epoch)
    return FollowerIdentity(request.replica_id, NO_EPOCH) if request.replica_id >= 0 else None


async def _load_cold_reads(fetched: list[FetchedPartition]) -> None:
    """Read data that is not in the page cache. The files are released even if that fails or is cancelled."""
    try:
        for index, fetched_partition in enumerate(fetched):
            if fetched_partition.is_cold:
                await fetched_partition.load()
                if index >= _PINNED_MAX:
                    fetched_partition.unpin()
    except BaseException:
        for fetched_partition in fetched:
            fetched_partition.release()
        raise
