"""The state machine of one subscription in one partition: members lease messages, each message is settled once. Pure.

    ready --choose, grant--> leased --ack--> settled
      ^                        |
      |                        +--nack, lease expiry------> waiting --due time--> ready
      |                        '--reject, attempt limit---> dying --dead letter written--> settled
      '--release---------------'

    A settled message that is redriven becomes ready again, as if it had never been delivered.

- Durable state changes only in `apply`, which cannot fail: replaying the acks log, from the beginning or from a
  snapshot, gives the same state. Questions (`settle`, `expire`, `offer`, ...) return events, which the broker appends
  and applies in the same step. Leases are not in the log; the ready and waiting messages are derived.
- A settled message is never delivered. No message has two leases. A settlement after the end of its lease is rejected.
  A range is settled completely or not at all.
- Neither size nor time of any operation grows with the backlog.
- If delivery depends on offsets only, a lease of a thousand messages costs as much as a lease of one. If it depends on
  the contents of messages (`config.opens_messages`), the broker decodes and offers them first; `ReadyWindow` in
  `ready_messages.py` states their order and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.machines.queues.delivery_failures import DeliveryFailure, DeliveryFailures, backoff_ms
from headrace.machines.queues.leases import UNKNOWN, Lease, Leases, granted_ranges
from headrace.machines.queues.offset_ranges import total_offset_count
from headrace.machines.queues.rate_limiter import RateLimiter
from headrace.machines.queues.ready_messages import ReadyRanges, ReadyWindow, merge_adjacent
from headrace.machines.queues.settled_offsets import SettledOffsets
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import (
    Ack,
    ClassifiedMessage,
    DeliveryState,
    GrantedRange,
    Nack,
    OffsetGap,
    Range,
    Reject,
    Release,
    Settlement,
    SubscriptionCounts,
    UndeliverableMessage,
)
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Failed,
    Redriven,
    Settled,
    SettledHow,
    SnapshotEvent,
    Sought,
)

_BURSTS_PER_SECOND = 10  # splits the rate, so that a second's messages do not come at once
_FAILURE_BYTES = 100  # in a snapshot: upper bound for five numbers with commas
_REDRIVEN_BYTES = 40  # in a snapshot: upper bound for two numbers with commas
_REASON_FACTOR = 6  # bytes per character in JSON, at most

FailedRange: TypeAlias = tuple[int, int, int, int, str, bool]


class _SnapshotContent(NamedTuple):
    """The fields of one part of a snapshot."""

    settled: bytes = b""
    failed: Sequence[FailedRange] = ()
    redriven: Sequence[tuple[int, int]] = ()


class PartitionSubscription:
    """`chance` returns random numbers from 0 to 1, for jitter. `stats` may be shared with other partitions."""

    def __init__(
        self, config: SubscriptionConfig, chance: Callable[[], float], stats: SubscriptionStats | None = None
    ) -> None:
        self.config = config
        self.stats = stats or SubscriptionStats()
        self._chance = chance
        self._rate = RateLimiter(config.headrace_rate or None)
        self._throttled_until_ms: int | None = None
        self._settled: SettledOffsets
        self._redriven: dict[int, int]  # how many times messages were redriven, by offset
        self._failures: DeliveryFailures
        self._leases: Leases
        self._window: ReadyWindow | None
        self._ready: ReadyRanges | ReadyWindow
        self._begin_at(0)

    @property
    def floor(self) -> int:
        """The ack floor: the first offset that is not settled."""
        return self._settled.floor

    @property
    def end(self) -> int:
        """No message at or after this offset was settled or has failed."""
        return max(self._settled.end, self._failures.end)

    # Durable state

    def apply(self, event: AcksEvent) -> None:
        """Change the durable state, and the state derived from it. Parts of snapshots change nothing: `AcksReplay`
        calls `restore` when it has read all of them."""
        match event:
            case Settled():
                for first, last in event.ranges:
                    self._settle(first, last)
            case Failed():
                self._fail(event)
            case Redriven():
                for offset, count in event.messages:
                    self._reopen(offset, count)
            case Created() | Sought():
                self._begin_at(event.floor)
            case Deleted():
                self._begin_at(0)

    def restore(self, parts: Sequence[SnapshotEvent]) -> None:
        """Replace the state by that of a snapshot. There are no leases afterwards."""
        self._begin_at(parts[0].floor)
        for part in parts:
            if part.settled:
                self._settled.add_slice(part.settled)
            for failed in part.failed:
                self._failures.fail(DeliveryFailure(*failed))
            self._redriven.update(part.redriven)

    def snapshot(
        self, snapshot_id: int, chunk_bytes_max: int, now_ms: int, subscriptions: int = 1
    ) -> list[SnapshotEvent]:
        """Return events of bounded size that rebuild the durable state; `snapshot_id` must be new in the log.

        `subscriptions` tells the reader how many subscriptions have a snapshot with this id.
        """
        slices = self._settled.slices(chunk_bytes_max * 3 // 4)  # base64 adds a third
        contents: list[_SnapshotContent] = [_SnapshotContent(settled=piece) for piece in slices]
        contents += [_SnapshotContent(failed=piece) for piece in _failed_range_chunks(self._failures, chunk_bytes_max)]
        redriven = iter(sorted(self._redriven.items()))
        while piece := list(islice(redriven, max(chunk_bytes_max // _REDRIVEN_BYTES, 1))):
            contents.append(_SnapshotContent(redriven=piece))
        contents = contents or [_SnapshotContent()]
        return [
            SnapshotEvent(now_ms, snapshot_id, number, len(contents), subscriptions, self.floor, **content._asdict())
            for number, content in enumerate(contents, 1)
        ]

    def reconfigure(self, config: SubscriptionConfig) -> None:
        """Keep leases and failures. If messages are decoded, all from the floor on must be offered again."""
        self.config = config
        self._rate.per_second = config.headrace_rate or None
        failures, self._failures = self._failures, DeliveryFailures(config.share_delivery_count_limit)
        for failure in failures:
            self._failures.fail(failure)
        for lease in self._leases:
            self._failures.lease(lease.first, lease.last)
        self._derive_ready()

    # Decoded messages

    @property
    def classified_to(self) -> int:
        """If messages are decoded: all messages below were offered."""
        return self.floor if self._window is None else self._window.classified_to

    @property
    def wants_classified(self) -> bool:
        """If messages are decoded: whether the broker should offer more, from `classified_to` on."""
        return self._window is not None and self._window.wants_classified

    def offer(self, messages: Iterable[ClassifiedMessage], next_offset: int, now_ms: int) -> list[AcksEvent]:
        """Add all messages from `classified_to` to below `next_offset`, ascending. Missing offsets are gaps, which
        never get a message."""
        window = self._window
        assert window is not None, "messages are offered only if delivery depends on their contents"
        undelivered: dict[SettledHow, list[Range]] = {"gap": [], "filtered": [], "expired": []}
        expected = window.classified_to
        for message in messages:
            offset = message.offset
            if offset < expected:
                continue  # its batch is offered again because of later messages
            undelivered["gap"] += self._settled.unsettled(expected, offset)
            expected = offset + 1
            if offset in self._settled or offset in self._failures.dying or offset in window:
                continue
            is_leased = self._leases.at(offset) is not None
            if not is_leased and not message.matches:
                undelivered["filtered"].append(Range(offset, offset))
            elif not is_leased and message.expires_ms is not None and message.expires_ms <= now_ms:
                undelivered["expired"].append(Range(offset, offset))
            else:
                window.admit(message, now_ms, is_free=not is_leased and offset not in self._failures.waiting)
        undelivered["gap"] += self._settled.unsettled(expected, next_offset)
        window.advance(max(next_offset, expected))
        self.stats.filtered += len(undelivered["filtered"])
        self.stats.expired += len(undelivered["expired"])
        return [Settled(now_ms, how, merge_adjacent(ranges)) for how, ranges in undelivered.items() if ranges]

    def trimmed(self, log_start: int, now_ms: int) -> Settled | None:
        """Settle the messages below a new log start as expired, because they can no longer be delivered."""
        if log_start <= self.floor:
            return None
        self.stats.expired += self._settled.count_unsettled(log_start)
        return Settled(now_ms, "expired", [(self.floor, log_start - 1)], by_retention=True)

    # Lease

    def choose(self, now_ms: int, count_max: int, end_offset: int) -> list[Range]:
        """Return the messages to grant now, ascending. `end_offset` is the first offset that cannot be read yet."""
        self._make_due_ready(now_ms)
        count_max = self._allowed(count_max, now_ms)
        if count_max <= 0:
            return []
        return self._ready.choose(count_max, end_offset, now_ms)

    def grant(
        self,
        ranges: Sequence[Range],
        member: str,
        now_ms: int,
        lease_ms: int | None = None,
        published_ms: int = UNKNOWN,
    ) -> list[GrantedRange]:
        """Lease messages, which must be all or a part of the result of `choose` in the same step."""
        until_ms = now_ms + (self.config.share_record_lock_duration_ms if lease_ms is None else lease_ms)
        granted: list[GrantedRange] = []
        for first, last in ranges:
            is_new = first >= self._failures.end
            granted += [GrantedRange(first, last, 1)] if is_new else self._failures.attempts_in(first, last)
        for first, last, attempt in granted:
            assert first >= self._leases.end or not self._leases.overlapping(first, last), "a message has one lease"
            self._leases.put(Lease(first, last, member, attempt, until_ms, now_ms, published_ms))
            self._ready.mark_leased(first, last)
            if self._rate.per_second is not None:
                self._rate.take(last - first + 1, now_ms / 1000)
        self.stats.delivered(granted, published_ms, now_ms)
        return granted

    def next_due_ms(self) -> int | None:
        """Return when time alone changes the state next: call `expire` then, and wake waiting members."""
        dues = (
            self._leases.ends.next_ms(),
            self._failures.retries.next_ms(),
            self._throttled_until_ms,
            None if self._window is None else self._window.expiries.next_ms(),
        )
        return min((due for due in dues if due is not None), default=None)

    # Settle

    def settle(
        self, first: int, last: int, how: Settlement, member: str | None, attempt: int | None, now_ms: int
    ) -> list[AcksEvent]:
        """Settle a range. Raises `InvalidRecordState` unless all of it is leased, by this member, in this attempt."""
        leases = self._leases.held(first, last, member, attempt, now_ms)
        if isinstance(how, Ack):
            self.stats.acked(last - first + 1, leases[0], now_ms)
            return [Settled(now_ms, "ack", [(first, last)])]
        if isinstance(how, OffsetGap):
            return [Settled(now_ms, "gap", [(first, last)])]
        if isinstance(how, Release):  # durable state does not change, so there is no event
            self.stats.leases_released += last - first + 1
            for lease in self._leases.cut(first, last):
                self._ready.make_ready(lease.first, lease.last)
            return []
        if isinstance(how, Nack):
            self.stats.nacks += last - first + 1
        else:
            self.stats.rejects += last - first + 1
        return [
            self._failure(max(first, lease.first), min(last, lease.last), lease.attempt, how, now_ms)
            for lease in leases
        ]

    def extend(
        self, first: int, last: int, member: str | None, attempt: int | None, now_ms: int, lease_ms: int | None = None
    ) -> None:
        """Extend a lease from now on. Raises like `settle`."""
        self._leases.held(first, last, member, attempt, now_ms)
        until_ms = now_ms + (self.config.share_record_lock_duration_ms if lease_ms is None else lease_ms)
        for lease in self._leases.cut(first, last):
            self._leases.put(msgspec.structs.replace(lease, until_ms=until_ms))
        self.stats.extends += last - first + 1

    def redrive(self, messages: Iterable[tuple[int, int]], now_ms: int) -> list[AcksEvent]:
        """Deliver settled messages again; each is an offset, and how many times the message has been redriven then.
        Messages that are not settled, or were redriven so many times, stay as they are: the request was repeated."""
        new = [(at, count) for at, count in messages if at in self._settled and not self.has_redriven(at, count)]
        return [Redriven(now_ms, new)] if new else []

    def has_redriven(self, offset: int, count: int) -> bool:
        """Whether the message was redriven at least so many times."""
        return self._redriven.get(offset, 0) >= count

    def forget_redriven(self, log_start: int) -> None:
        """Forget the counts of messages that the log no longer has; they cannot be redriven."""
        self._redriven = {at: count for at, count in self._redriven.items() if at >= log_start}

    def release_member(self, member: str, now_ms: int) -> list[AcksEvent]:
        """Release the leases of a removed member, which count as failed deliveries."""
        leases = [lease for lease in self._leases if lease.member == member]
        self.stats.leases_released += total_offset_count(leases)
        return self._nack_leases(leases, Nack(reason="the member is gone"), now_ms)

    def expire(self, now_ms: int) -> list[AcksEvent]:
        """Return the events of expired leases and of expired messages."""
        self._make_due_ready(now_ms)
        expired_leases = self._leases.expired(now_ms)
        self.stats.leases_expired += total_offset_count(expired_leases)
        events = self._nack_leases(expired_leases, Nack(reason="the lease expired"), now_ms)
        if self._window is not None and (expired_ranges := self._window.expired_ranges(now_ms)):
            self.stats.expired += sum(last - first + 1 for first, last in expired_ranges)
            events.append(Settled(now_ms, "expired", expired_ranges))
        return events

    def dying(self) -> Iterator[UndeliverableMessage]:
        """Iterate over the messages to write as dead letters, then to settle as `dead`. The state may change during
        the iteration."""
        offset = self.floor
        while (dying := self._failures.next_dying(offset)) is not None:
            yield dying._replace(redriven=self._redriven.get(dying.offset, 0))
            offset = dying.offset + 1

    # Queries

    def is_settled(self, offset: int) -> bool:
        return offset in self._settled

    def state_of(self, offset: int) -> DeliveryState:
        if offset in self._settled:
            return DeliveryState("settled")
        failure = self._failures.at(offset)
        reason = "" if failure is None else failure.reason
        lease = self._leases.at(offset)
        if lease is not None:
            return DeliveryState("leased", lease.attempt, lease.member, lease.until_ms, reason)
        if failure is None:
            return DeliveryState("ready")
        if offset in self._failures.dying:
            return DeliveryState("dying", failure.attempts, reason=reason)
        if offset in self._failures.waiting:
            return DeliveryState("waiting", failure.attempts, until_ms=failure.due_ms, reason=reason)
        return DeliveryState("ready", failure.attempts, reason=reason)

    def counts(self, end_offset: int) -> SubscriptionCounts:
        return SubscriptionCounts(
            backlog=self._settled.count_unsettled(end_offset),
            leased=self._leases.offset_count,
            waiting=len(self._failures.waiting),
            dying=len(self._failures.dying),
            settled_above_floor=len(self._settled),
        )

    # Internal

    def _begin_at(self, floor: int) -> None:
        self._settled = SettledOffsets(floor)
        self._redriven = {}
        self._failures = DeliveryFailures(self.config.share_delivery_count_limit)
        self._leases = Leases()
        self._derive_ready()

    def _derive_ready(self) -> None:
        config = self.config
        self._window = None
        if config.opens_messages:
            self._window = ReadyWindow(self._settled, self._leases, config.slacks_ms, config.headrace_key_concurrency)
        self._ready = self._window or ReadyRanges(self._settled, self._failures, self._leases)

    def _reopen(self, offset: int, count: int) -> None:
        self._redriven[offset] = count
        if offset in self._settled:
            self._settled.remove(offset)
            self._ready.reopen(offset)

    def _settle(self, first: int, last: int) -> None:
        self._settled.add(first, last)
        self._leases.cut(first, last)
        self._failures.forget(first, last)
        self._ready.remove(first, last)

    def _fail(self, event: Failed) -> None:
        first, last = event.first, event.last
        self._leases.cut(first, last)
        failure = DeliveryFailure(first, last, event.attempts, event.due_ms, event.reason, event.is_dying)
        state = self._failures.fail(failure, waits=event.due_ms > event.at)
        if state == "ready":
            self._ready.make_ready(first, last)
        elif state == "dying":
            self._ready.remove(first, last)
        else:
            self._ready.mark_waiting(first, last)

    def _nack_leases(self, leases: list[Lease], how: Nack, now_ms: int) -> list[AcksEvent]:
        """Nack the messages of ended leases. Merge adjacent ranges into one event, unless back-off with jitter applies,
        which delays each range separately."""
        ranges = granted_ranges(leases, are_joined=not self.config.headrace_retry_backoff_ms)
        return [self._failure(*one, how, now_ms) for one in ranges]

    def _failure(self, first: int, last: int, attempt: int, how: Nack | Reject, now_ms: int) -> Settled | Failed:
        """Return the event of a failed delivery: settled, dying, or waiting for a retry."""
        config = self.config
        is_dying = isinstance(how, Reject) or attempt >= config.share_delivery_count_limit
        if is_dying and not config.headrace_dead_letters_enable:
            self.stats.discarded += last - first + 1
            return Settled(now_ms, "reject" if isinstance(how, Reject) else "discarded", [(first, last)])
        if is_dying:
            wait_ms = 0
        elif isinstance(how, Nack) and how.delay_ms is not None:
            wait_ms = how.delay_ms
        else:
            wait_ms = backoff_ms(config, attempt, self._chance())
        return Failed(now_ms, first, last, attempt, now_ms + wait_ms, how.reason, is_dying)

    def _make_due_ready(self, now_ms: int) -> None:
        for first, last in self._failures.take_due(now_ms):
            self._ready.make_ready(first, last)
        if self._throttled_until_ms is not None and self._throttled_until_ms <= now_ms:
            self._throttled_until_ms = None

    def _allowed(self, count_max: int, now_ms: int) -> int:
        """Return how many messages may be leased now, by the limit of leases and by the rate."""
        locks_max, per_second = self.config.share_partition_max_record_locks, self._rate.per_second
        if locks_max:
            count_max = min(count_max, locks_max - self._leases.offset_count)
        if per_second is not None:
            if not self._rate.is_free(now_ms / 1000):
                self._throttled_until_ms = int(self._rate.free_at * 1000) + 1
                return 0
            count_max = min(count_max, max(1, per_second // _BURSTS_PER_SECOND))
        return count_max


def _failed_range_chunks(failures: DeliveryFailures, bytes_max: int) -> Iterator[list[FailedRange]]:
    piece: list[FailedRange] = []
    size = 0
    for failed in _failed_ranges(failures):
        failed_size = _FAILURE_BYTES + _REASON_FACTOR * len(failed[4])
        if piece and size + failed_size > bytes_max:
            yield piece
            piece, size = [], 0
        piece.append(failed)
        size += failed_size
    if piece:
        yield piece


def _failed_ranges(failures: DeliveryFailures) -> list[FailedRange]:
    """Merge adjacent failures with equal properties: how often a range was split is not part of the state."""
    merged: list[FailedRange] = []
    for failure in failures:
        known = (failure.attempts, failure.due_ms, failure.reason, failure.is_dying)
        if merged and merged[-1][1] + 1 == failure.first and merged[-1][2:] == known:
            merged[-1] = (merged[-1][0], failure.last, *known)
        else:
            merged.append((failure.first, failure.last, *known))
    return merged
