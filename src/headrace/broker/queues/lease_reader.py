"""Lease messages: choose what may go, read it from the log, grant what was read.

There is no await in between, so the chosen messages are still available when they are granted. If the lease must wait
for the disk, or for many batches to be decoded, a `ColdLease` is returned, which starts again by choosing offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.batches import is_aborted, split_batches
from headrace.broker.partition import Partition
from headrace.broker.queues.lease_poll import ColdLease, LeaseResult, intersect_hidden, subtract_hidden
from headrace.broker.queues.start_position import READ_COMMITTED, readable_end
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.queues.filters import Filter, compile_filter
from headrace.machines.queues.leases import UNKNOWN
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.machines.queues.subscription_values import ClassifiedMessage, GrantedRange, OffsetGap, Range
from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.model.message_headers import PRIORITY_DEFAULT, expires_ms_of, priority_of
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.storage.log.reading import ColdRead, LogSlice
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, parse_header, read_records

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard


# The partition whose messages are leased: asked for with every request, and mostly the same.
#
# It also knows below which offset something can be settled. A log may have lost its end: with the power, where its
# topic does not wait for the disk, or by an election that an operator forced. What comes at those offsets next is not
# what was settled there, and must be delivered.


Served = dict[tuple[str, int], tuple[int, int]]
"""By topic and partition: in which epoch it was led when it was last served here, and where its log ended then."""


class LeaseSource:
    __slots__ = ("_catalogue", "_known", "_owner_id", "_place", "_served")

    def __init__(self, catalogue: Catalogue, topic: str, index: int, owner_id: UUID, served: Served) -> None:
        self._catalogue = catalogue
        self._place = topic, index
        self._owner_id = owner_id
        self._served = served
        self._known: Partition | None = None

    def find(self) -> Partition:
        """Raises unless it is led here."""
        partition = self._catalogue.partition(*self._place)
        if partition is not self._known:
            if partition.topic_id != self._owner_id:
                raise UnknownTopicOrPartition(f"topic {self._place[0]} was recreated")
            self._known = partition
        return partition

    def end_before(self, partition: Partition, reconciled_epoch: int) -> int:
        """Where the log ended for what was settled until now: its end when the present leader epoch began, or when it
        was last served in this epoch. If more than one epoch began since the state was reconciled, the end of
        `reconciled_epoch`: the log may have lost its end in any of them."""
        epoch, end_offset = self._served.get(self._place, (-1, 0))
        end_offset = max(partition.epoch_start, end_offset if epoch == partition.leader_epoch else 0)
        known, end_of_epoch = partition.log.epochs.end_offset_for(reconciled_epoch, partition.log.end_offset)
        return min(end_offset, end_of_epoch) if known >= 0 else end_offset

    def served(self) -> None:
        """It is not served any more; perhaps it will be again, in the same lead."""
        try:
            partition = self.find()
        except HeadraceError:
            self._served.pop(self._place, None)
        else:
            self._served[self._place] = partition.leader_epoch, partition.log.end_offset


# Opening batches for subscriptions whose deliveries depend on what is in a message: key, priority, filter, expiry.
#
# Batches are opened in order, each once per subscription, a piece at a time. Whatever is not a message (control
# batches, records of aborted transactions, what compaction took) is left out, and so is settled as a gap.


_UNPACKED_BYTES_MAX = 64 << 20


class MessageClassifier:
    """How messages look to one configuration, from which it is made."""

    __slots__ = ("_expires", "_filter", "_has_priorities", "_orders_keys", "config")

    def __init__(self, config: SubscriptionConfig) -> None:
        self.config = config
        self._filter: Filter | None = compile_filter(config.headrace_filter) if config.headrace_filter else None
        self._has_priorities = bool(config.headrace_priority_slack_ms)
        self._expires = config.headrace_expiry_enable
        self._orders_keys = config.headrace_key_concurrency > 0

    def open(
        self, data: bytes, from_offset: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> list[ClassifiedMessage]:
        """The messages of these batches from that offset on."""
        messages: list[ClassifiedMessage] = []
        for batch, header in split_batches(data):
            if header.is_control or is_aborted(header, aborted):
                continue
            messages += [
                self._opened(record)
                for record in read_records(batch, header, _UNPACKED_BYTES_MAX)
                if record.offset >= from_offset
            ]
        return messages

    def _opened(self, record: BatchRecord) -> ClassifiedMessage:
        headers = record.headers
        return ClassifiedMessage(
            record.offset,
            priority_of(headers) if self._has_priorities and headers else PRIORITY_DEFAULT,
            record.key if self._orders_keys else None,  # not needed otherwise: saves memory
            record.timestamp_ms,
            expires_ms_of(headers, record.timestamp_ms) if self._expires and headers else None,
            self._filter is None or self._filter(record.key, headers),
        )


# When messages were published, as far as their batch tells it without being opened.


def newest_publish_time_ms(records: LogSlice | bytes) -> int:
    """The newest timestamp in the first of these batches; `UNKNOWN` if there is none."""
    if isinstance(records, LogSlice):
        data = records.file.pread(HEADER_SIZE, records.position) if len(records) else b""
    else:
        data = records
    if len(data) < HEADER_SIZE:
        return UNKNOWN
    return max(parse_header(data).max_timestamp, UNKNOWN)


# Reading what is to be leased: of each range that was chosen its batches, as few as hold it.
#
# One piece of the file goes out by sendfile, as Fetch has it; several are joined in memory. Only what was read may be
# granted, so a range that lies on both sides of a segment's end, or of the byte limit, is granted in part.


_ONE_BATCH = 1  # byte: the first batch is given however large it is
_COLD_BYTES_MAX = 1 << 20  # what one cold read may take of memory, however much was asked for


class LeasedRanges(NamedTuple):
    """`records` are whole batches that hold all of `ranges`."""

    ranges: list[Range]
    records: LogSlice | bytes


def read_ranges(
    partition: Partition, ranges: Sequence[Range], size_bytes_max: int, end_offset: int
) -> LeasedRanges | ColdRead:
    """At least one batch. Cold is an answer only if the first range is; what is cold behind it can wait."""
    first = read_range(partition, *ranges[0], size_bytes_max, end_offset)
    if isinstance(first, ColdRead):
        return first
    slices = [first]
    if len(ranges) > 1 and first.next_offset > ranges[0].last:
        try:
            _read_further_batches(partition, slices, ranges[1:], size_bytes_max, end_offset)
        except BaseException:
            for one in slices:
                one.release()
            raise
    reached = slices[-1].next_offset
    return LeasedRanges(clip_below(ranges, reached), _concatenate(slices))


def _read_further_batches(
    partition: Partition, slices: list[LogSlice], ranges: Iterable[Range], size_bytes_max: int, end_offset: int
) -> None:
    """Read on as long as every range is whole and there is room."""
    size_bytes = len(slices[0])
    for first, last in ranges:
        # A batch may hold the end of one range and the beginning of the next.
        begin = max(first, slices[-1].next_offset)
        if begin > last:
            continue
        if size_bytes >= size_bytes_max:
            return
        piece = read_range(partition, begin, last, size_bytes_max - size_bytes, end_offset)
        if isinstance(piece, ColdRead):
            return
        slices.append(piece)
        size_bytes += len(piece)
        if piece.next_offset <= last:
            return


def read_range(
    partition: Partition, first: int, last: int, size_bytes_max: int, end_offset: int
) -> LogSlice | ColdRead:
    """The batches from the one that holds `first` to the one that holds `last`, or as many as there is room for."""
    piece = partition.read(first, _ONE_BATCH, end_offset)
    if isinstance(piece, ColdRead):
        return partition.read(first, min(size_bytes_max, _COLD_BYTES_MAX), end_offset)
    if piece.next_offset > last + 1 and len(piece):
        _remember_position(partition, last + 1, piece)
    if piece.next_offset > last or len(piece) >= size_bytes_max or not len(piece):
        return piece
    size_bytes = size_bytes_max
    final = partition.read(last, _ONE_BATCH, end_offset)
    if isinstance(final, LogSlice):
        if len(final) and final.file is piece.file:
            size_bytes = min(size_bytes, final.position + len(final) - piece.position)
        final.release()
    piece.release()
    return partition.read(first, size_bytes, end_offset)


def _remember_position(partition: Partition, offset: int, batch: LogSlice) -> None:
    """Cache the position of a batch that is leased in parts, so that the next read need not search for it."""
    places = partition.log.places
    behind = places.get(batch.next_offset)
    if behind is not None:
        places.note(offset, behind[0], batch.position)


def cut_to_ranges(data: bytes, ranges: Sequence[Range]) -> bytes:
    """Of these batches those from the first range to the last: more may have been read than is needed."""
    begin, end = ranges[0].first, ranges[-1].last
    start = stop = position = 0
    for batch, header in split_batches(data):
        position += len(batch)
        if header.last_offset < begin:
            start = position
        if header.base_offset <= end:
            stop = position
    return data[start:stop]


def clip_below(ranges: Sequence[Range], end_offset: int) -> list[Range]:
    """The parts of the ranges that lie below an offset."""
    return [Range(first, min(last, end_offset - 1)) for first, last in ranges if first < end_offset]


def hidden_offsets(records: LogSlice | bytes, aborted: Sequence[AbortedTransaction]) -> list[Range]:
    """Which of these offsets are no messages to a reader of committed transactions."""
    data = records.bytes() if isinstance(records, LogSlice) else records
    return [
        Range(header.base_offset, header.last_offset)
        for _, header in split_batches(data)
        if header.is_control or is_aborted(header, aborted)
    ]


def _concatenate(slices: Sequence[LogSlice]) -> LogSlice | bytes:
    if len(slices) == 1:
        return slices[0]
    data = b"".join(one.bytes() for one in slices)
    for one in slices:
        one.release()
    return data


_CLASSIFIED_BYTES = 1 << 16  # per read
_CLASSIFIED_BYTES_MAX = 1 << 18  # per turn of the event loop: some milliseconds


class LeaseRequestSpec(NamedTuple):
    name: str
    member: str
    count_max: int
    bytes_max: int
    lease_ms: int | None


class Leasing:
    def __init__(self, shard: SubscriptionShard, now_ms: Callable[[], int]) -> None:
        self._shard = shard
        self._now_ms = now_ms
        self._openers: dict[str, MessageClassifier] = {}

    def forget(self, name: str) -> None:
        self._openers.pop(name, None)

    def lease(self, wanted: LeaseRequestSpec) -> LeaseResult | ColdLease | None:
        shard = self._shard
        partition = shard.leasable_partition()
        subscription = shard.find(wanted.name)
        shard.catch_up(wanted.name, subscription, partition)
        outcome = self._lease_classified(wanted, partition, subscription)
        shard.update_timer(wanted.name, subscription)
        if isinstance(outcome, LeaseResult):
            shard.wake(wanted.name)  # there may be more messages for other waiters
        return outcome

    def _lease_classified(
        self, wanted: LeaseRequestSpec, partition: Partition, subscription: PartitionSubscription
    ) -> LeaseResult | ColdLease | None:
        config = subscription.config
        if not config.opens_messages:
            return self._lease_chosen(wanted, partition, subscription)
        # With priorities, decode the whole window before choosing.
        if not config.headrace_priority_slack_ms:
            leased = self._lease_chosen(wanted, partition, subscription)
            if leased is not None:
                return leased
        unopened = self._classify_batches(wanted.name, subscription, partition)
        if not unopened or not config.headrace_priority_slack_ms:
            leased = self._lease_chosen(wanted, partition, subscription)
            if leased is not None:
                return leased
        if not unopened:
            return None
        read = unopened if isinstance(unopened, ColdRead) else None
        return ColdLease(read, partial(self._classify_loaded, wanted, subscription.classified_to))

    def _lease_chosen(
        self, wanted: LeaseRequestSpec, partition: Partition, subscription: PartitionSubscription
    ) -> LeaseResult | ColdLease | None:
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
        self, wanted: LeaseRequestSpec, first_offset: int, data: bytes, next_offset: int
    ) -> LeaseResult | ColdLease | None:
        """Choose again with the loaded batches, since the state may have changed while they were read."""
        shard = self._shard
        partition = shard.leasable_partition()
        subscription = shard.find(wanted.name)
        shard.catch_up(wanted.name, subscription, partition)
        end_offset = readable_end(partition, subscription.config)
        # `choose` must know the end of the log, but only loaded records may be granted: the client settles a leased
        # offset without a record as a gap, and the message would be lost.
        chosen = subscription.choose(self._now_ms(), wanted.count_max, end_offset)
        ranges = clip_below(chosen, min(next_offset, end_offset))
        if not ranges or ranges[0].first < first_offset:
            return self.lease(wanted)
        leased = self._grant(wanted, partition, subscription, LeasedRanges(ranges, cut_to_ranges(data, ranges)))
        if leased is None:
            return self.lease(wanted)
        shard.update_timer(wanted.name, subscription)
        shard.wake(wanted.name)
        return leased

    def _grant(
        self, wanted: LeaseRequestSpec, partition: Partition, subscription: PartitionSubscription, pieces: LeasedRanges
    ) -> LeaseResult | None:
        """Grant the chosen offsets; return None if none of them is a message."""
        now_ms = self._now_ms()
        published_ms = (
            newest_publish_time_ms(pieces.records) if subscription.stats.needs_publish_time(now_ms) else UNKNOWN
        )
        granted = subscription.grant(pieces.ranges, wanted.member, now_ms, wanted.lease_ms, published_ms)
        hidden = _offsets_without_message(partition, subscription.config, granted, pieces.records)
        for first, last in hidden:
            gaps = subscription.settle(first, last, OffsetGap(), wanted.member, None, now_ms)
            self._shard.put(wanted.name, subscription, gaps)
        granted = subtract_hidden(granted, hidden)
        lease_ms = wanted.lease_ms or subscription.config.share_record_lock_duration_ms
        leased = LeaseResult(granted, pieces.records, now_ms + lease_ms, self._shard.epoch)
        if granted:
            return leased
        leased.release()
        return None

    # Decode batches

    def _classify_batches(
        self, name: str, subscription: PartitionSubscription, partition: Partition
    ) -> ColdRead | bool:
        """Decode the batches that the subscription needs. Return True if there are more, or a cold read if it must wait
        for the disk."""
        end_offset = readable_end(partition, subscription.config)
        opened_bytes = 0
        while subscription.wants_classified and subscription.classified_to < end_offset:
            if opened_bytes >= _CLASSIFIED_BYTES_MAX:
                return True
            piece = partition.read(subscription.classified_to, _CLASSIFIED_BYTES, end_offset)
            if isinstance(piece, ColdRead):
                return piece
            data = piece.bytes()
            piece.release()
            assert piece.next_offset > subscription.classified_to, "each read makes progress"
            self._offer(name, subscription, partition, data, piece.next_offset)
            opened_bytes += len(data)
        return False

    def _classify_loaded(
        self, wanted: LeaseRequestSpec, first_offset: int, data: bytes, next_offset: int
    ) -> LeaseResult | ColdLease | None:
        """Decode loaded batches. The window may have moved meanwhile: a seek or a new configuration may have moved it
        before `first_offset`. Offsets before that were not read, and must not be treated as a gap."""
        shard = self._shard
        partition = shard.leasable_partition()
        subscription = shard.find(wanted.name)
        if subscription.wants_classified and first_offset <= subscription.classified_to < next_offset:
            self._offer(wanted.name, subscription, partition, data, next_offset)
        return self.lease(wanted)

    def _offer(
        self, name: str, subscription: PartitionSubscription, partition: Partition, data: bytes, next_offset: int
    ) -> None:
        opener = self._openers.get(name)
        if opener is None or opener.config is not subscription.config:
            opener = self._openers[name] = MessageClassifier(subscription.config)
        classified_to = subscription.classified_to
        aborted: Sequence[AbortedTransaction] = ()
        if subscription.config.share_isolation_level == READ_COMMITTED:
            aborted = partition.state.aborted(classified_to, next_offset)
        messages = opener.open(data, classified_to, aborted)
        self._shard.put(name, subscription, subscription.offer(messages, next_offset, self._now_ms()))


def _offsets_without_message(
    partition: Partition, config: SubscriptionConfig, granted: Sequence[GrantedRange], records: LogSlice | bytes
) -> list[Range]:
    """Return the granted offsets without a message: all of a gap, else those of aborted transactions."""
    if not len(records):
        return [Range(first, last) for first, last, _ in granted]
    if config.share_isolation_level != READ_COMMITTED:
        return []
    aborted = partition.state.aborted(granted[0].first, granted[-1].last + 1)
    return intersect_hidden(granted, hidden_offsets(records, aborted)) if aborted else []
