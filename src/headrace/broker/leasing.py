"""Find and grant a lease: the state machine chooses offsets, the log is read, and the messages are granted.

There is no await in between, so the chosen messages are still available when they are granted. If the lease must wait
for the disk, or for many batches to be decoded, a `ColdLease` is returned, which starts again by choosing offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.lease_reading import Pieces, below, cut_out, hidden_in, read_ranges
from headrace.broker.leases import ColdLease, Leased, overlaps, without
from headrace.broker.opening import Opener
from headrace.broker.partition import Partition
from headrace.broker.published import published_in
from headrace.broker.subscription_starts import READ_COMMITTED, readable_end
from headrace.machines.leases import UNKNOWN
from headrace.machines.partition_transactions import AbortedTransaction
from headrace.machines.subscription import Subscription
from headrace.machines.subscription_answers import Gap, Granted, Range
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.storage.reading import ColdRead, LogSlice

if TYPE_CHECKING:
    from headrace.broker.led_subscriptions import LedSubscriptions

_OPENED_BYTES = 1 << 16  # per read
_OPENED_BYTES_MAX = 1 << 18  # per turn of the event loop: some milliseconds


class WantedLease(NamedTuple):
    name: str
    member: str
    count_max: int
    bytes_max: int
    lease_ms: int | None


class Leasing:
    def __init__(self, led: LedSubscriptions, now_ms: Callable[[], int]) -> None:
        self._led = led
        self._now_ms = now_ms
        self._openers: dict[str, Opener] = {}

    def forget(self, name: str) -> None:
        self._openers.pop(name, None)

    def lease(self, wanted: WantedLease) -> Leased | ColdLease | None:
        led = self._led
        partition = led.lendable()
        subscription = led.find(wanted.name)
        led.catch_up(wanted.name, subscription, partition)
        outcome = self._lease_opened(wanted, partition, subscription)
        led.set_alarm(wanted.name, subscription)
        if isinstance(outcome, Leased):
            led.wake(wanted.name)  # there may be more messages for other waiters
        return outcome

    def _lease_opened(
        self, wanted: WantedLease, partition: Partition, subscription: Subscription
    ) -> Leased | ColdLease | None:
        config = subscription.config
        if not config.opens_messages:
            return self._lease_chosen(wanted, partition, subscription)
        # With priorities, decode the whole window before choosing.
        if not config.headrace_priority_slack_ms:
            leased = self._lease_chosen(wanted, partition, subscription)
            if leased is not None:
                return leased
        unopened = self._open(wanted.name, subscription, partition)
        if not unopened or not config.headrace_priority_slack_ms:
            leased = self._lease_chosen(wanted, partition, subscription)
            if leased is not None:
                return leased
        if not unopened:
            return None
        read = unopened if isinstance(unopened, ColdRead) else None
        return ColdLease(read, partial(self._open_loaded, wanted, subscription.opened_to))

    def _lease_chosen(
        self, wanted: WantedLease, partition: Partition, subscription: Subscription
    ) -> Leased | ColdLease | None:
        end_offset = readable_end(partition, subscription.config)
        while ranges := subscription.choose(self._now_ms(), wanted.count_max, end_offset):
            pieces = read_ranges(partition, ranges, wanted.bytes_max, end_offset)
            if isinstance(pieces, ColdRead):
                return ColdLease(pieces, partial(self._lease_loaded, wanted, ranges[0].first))
            assert pieces.ranges, "each read makes progress"
            leased = self._grant(wanted, partition, subscription, pieces)
            if leased is not None:
                return leased
        return None

    def _lease_loaded(
        self, wanted: WantedLease, first_offset: int, data: bytes, next_offset: int
    ) -> Leased | ColdLease | None:
        """Choose again with the loaded batches, since the state may have changed while they were read."""
        led = self._led
        partition = led.lendable()
        subscription = led.find(wanted.name)
        led.catch_up(wanted.name, subscription, partition)
        end_offset = readable_end(partition, subscription.config)
        # `choose` must know the end of the log, but only loaded records may be granted: the client settles a leased
        # offset without a record as a gap, and the message would be lost.
        chosen = subscription.choose(self._now_ms(), wanted.count_max, end_offset)
        ranges = below(chosen, min(next_offset, end_offset))
        if not ranges or ranges[0].first < first_offset:
            return self.lease(wanted)
        leased = self._grant(wanted, partition, subscription, Pieces(ranges, cut_out(data, ranges)))
        if leased is None:
            return self.lease(wanted)
        led.set_alarm(wanted.name, subscription)
        led.wake(wanted.name)
        return leased

    def _grant(
        self, wanted: WantedLease, partition: Partition, subscription: Subscription, pieces: Pieces
    ) -> Leased | None:
        """Grant the chosen offsets; return None if none of them is a message."""
        now_ms = self._now_ms()
        published_ms = published_in(pieces.records) if subscription.tally.wants_look(now_ms) else UNKNOWN
        granted = subscription.grant(pieces.ranges, wanted.member, now_ms, wanted.lease_ms, published_ms)
        hidden = _hidden(partition, subscription.config, granted, pieces.records)
        for first, last in hidden:
            gaps = subscription.settle(first, last, Gap(), wanted.member, None, now_ms)
            self._led.put(wanted.name, subscription, gaps)
        granted = without(granted, hidden)
        lease_ms = wanted.lease_ms or subscription.config.share_record_lock_duration_ms
        leased = Leased(granted, pieces.records, now_ms + lease_ms, self._led.epoch)
        if granted:
            return leased
        leased.release()
        return None

    # Decode batches

    def _open(self, name: str, subscription: Subscription, partition: Partition) -> ColdRead | bool:
        """Decode the batches that the subscription needs. Return True if there are more, or a cold read if it must wait
        for the disk."""
        end_offset = readable_end(partition, subscription.config)
        opened_bytes = 0
        while subscription.wants_opened and subscription.opened_to < end_offset:
            if opened_bytes >= _OPENED_BYTES_MAX:
                return True
            piece = partition.read(subscription.opened_to, _OPENED_BYTES, end_offset)
            if isinstance(piece, ColdRead):
                return piece
            data = piece.bytes()
            piece.release()
            assert piece.next_offset > subscription.opened_to, "each read makes progress"
            self._offer(name, subscription, partition, data, piece.next_offset)
            opened_bytes += len(data)
        return False

    def _open_loaded(
        self, wanted: WantedLease, first_offset: int, data: bytes, next_offset: int
    ) -> Leased | ColdLease | None:
        """Decode loaded batches. The window may have moved meanwhile: a seek or a new configuration may have moved it
        before `first_offset`. Offsets before that were not read, and must not be treated as a gap."""
        led = self._led
        partition = led.lendable()
        subscription = led.find(wanted.name)
        if subscription.wants_opened and first_offset <= subscription.opened_to < next_offset:
            self._offer(wanted.name, subscription, partition, data, next_offset)
        return self.lease(wanted)

    def _offer(
        self, name: str, subscription: Subscription, partition: Partition, data: bytes, next_offset: int
    ) -> None:
        opener = self._openers.get(name)
        if opener is None or opener.config is not subscription.config:
            opener = self._openers[name] = Opener(subscription.config)
        opened_to = subscription.opened_to
        aborted: Sequence[AbortedTransaction] = ()
        if subscription.config.share_isolation_level == READ_COMMITTED:
            aborted = partition.state.aborted(opened_to, next_offset)
        messages = opener.open(data, opened_to, aborted)
        self._led.put(name, subscription, subscription.offer(messages, next_offset, self._now_ms()))


def _hidden(
    partition: Partition, config: SubscriptionConfig, granted: Sequence[Granted], records: LogSlice | bytes
) -> list[Range]:
    """Return the granted offsets without a message: all of a gap, else those of aborted transactions."""
    if not len(records):
        return [Range(first, last) for first, last, _ in granted]
    if config.share_isolation_level != READ_COMMITTED:
        return []
    aborted = partition.state.aborted(granted[0].first, granted[-1].last + 1)
    return overlaps(granted, hidden_in(records, aborted)) if aborted else []
