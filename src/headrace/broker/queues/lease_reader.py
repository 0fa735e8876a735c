"""Read the messages of a partition for a lease.

Nothing here knows the subscriptions of the partition; `SubscriptionShard` chooses, grants and settles.

- `read_ranges` reads, for each chosen range, the fewest batches that contain it. One piece of a file is sent with
  sendfile, as Fetch does; several pieces are joined in memory. Only messages that were read may be granted, so a range
  that crosses the end of a segment or the byte limit is granted in part.
- `MessageClassifier` decodes batches for subscriptions whose delivery depends on key, priority, filter or expiry.
  It decodes batches in order, each once per subscription, and omits everything that is not a message: control batches,
  records of aborted transactions, offsets that compaction removed. The subscription settles those as gaps.
- `LeaseSource` returns the partition, and the offset below which settlements are valid. A log may have lost its end: by
  a power failure, if the topic does not wait for the disk, or by an unclean election. New messages at those offsets are
  not the settled ones, and must be delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from headrace.broker.partition import Partition, is_aborted
from headrace.broker.queues.start_position import READ_COMMITTED
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.queues.filters import Filter, compile_filter
from headrace.machines.queues.leases import UNKNOWN
from headrace.machines.queues.subscription_values import ClassifiedMessage, GrantedRange, Range
from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.model.message_headers import PRIORITY_DEFAULT, expires_ms_of, priority_of
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.storage.log.reading import ColdRead, LogSlice
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, parse_header, read_records, split_batches

_ONE_BATCH = 1  # byte: the first batch is returned however large it is
_COLD_BYTES_MAX = 1 << 20  # memory limit of one cold read, whatever the request's limit
_UNPACKED_BYTES_MAX = 64 << 20


class LeasedRanges(NamedTuple):
    """`records` are whole batches that contain all of `ranges`."""

    ranges: list[Range]
    records: LogSlice | bytes


def read_ranges(
    partition: Partition, ranges: Sequence[Range], size_bytes_max: int, end_offset: int
) -> LeasedRanges | ColdRead:
    """Read at least one batch. Return a cold read only if the first range is cold; later cold ranges are left out."""
    first = _read_range(partition, *ranges[0], size_bytes_max, end_offset)
    if isinstance(first, ColdRead):
        return first
    slices = [first]
    if len(ranges) > 1 and first.next_offset > ranges[0].last:
        try:
            _read_further_batches(partition, slices, ranges[1:], size_bytes_max, end_offset)
        except BaseException:
            for piece in slices:
                piece.release()
            raise
    next_offset = slices[-1].next_offset
    return LeasedRanges(clip_below(ranges, next_offset), _concatenate(slices))


def _read_further_batches(
    partition: Partition, slices: list[LogSlice], ranges: Iterable[Range], size_bytes_max: int, end_offset: int
) -> None:
    """Continue to read while every range is complete and the size limit is not reached."""
    size_bytes = len(slices[0])
    for first, last in ranges:
        # A batch may contain the end of one range and the beginning of the next.
        begin = max(first, slices[-1].next_offset)
        if begin > last:
            continue
        if size_bytes >= size_bytes_max:
            return
        piece = _read_range(partition, begin, last, size_bytes_max - size_bytes, end_offset)
        if isinstance(piece, ColdRead):
            return
        slices.append(piece)
        size_bytes += len(piece)
        if piece.next_offset <= last:
            return


def _read_range(
    partition: Partition, first: int, last: int, size_bytes_max: int, end_offset: int
) -> LogSlice | ColdRead:
    """Read from the batch with `first` to the batch with `last`, or up to the size limit."""
    piece = partition.read(first, _ONE_BATCH, end_offset)
    if isinstance(piece, ColdRead):
        return partition.read(first, min(size_bytes_max, _COLD_BYTES_MAX), end_offset)
    if piece.next_offset > last + 1 and len(piece):
        _cache_position(partition, last + 1, piece)
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


def _cache_position(partition: Partition, offset: int, batch: LogSlice) -> None:
    """Cache the position of a batch that is leased in parts, so that the next read need not search for it."""
    positions = partition.log.positions
    following = positions.get(batch.next_offset)
    if following is not None:
        positions.remember(offset, following[0], batch.position)


def _concatenate(slices: Sequence[LogSlice]) -> LogSlice | bytes:
    if len(slices) == 1:
        return slices[0]
    data = b"".join(piece.bytes() for piece in slices)
    for piece in slices:
        piece.release()
    return data


def cut_to_ranges(data: bytes, ranges: Sequence[Range]) -> bytes:
    """Return the batches from the first range to the last, because a cold read may return more than is needed."""
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
    """Return the parts of the ranges below an offset."""
    return [Range(first, min(last, end_offset - 1)) for first, last in ranges if first < end_offset]


def intersect_ranges(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[Range]:
    """Return the offsets in both lists of ranges; both ascend and do not overlap."""
    found: list[Range] = []
    at = other = 0
    while at < len(some) and other < len(others):
        first, last = max(some[at][0], others[other][0]), min(some[at][1], others[other][1])
        if first <= last:
            found.append(Range(first, last))
        if some[at][1] < others[other][1]:
            at += 1
        else:
            other += 1
    return found


def subtract_ranges(granted: Sequence[GrantedRange], removed: Sequence[Range]) -> list[GrantedRange]:
    """Return the granted ranges without the removed ones; both ascend."""
    left: list[GrantedRange] = []
    for first, last, attempt in granted:
        begin = first
        for removed_first, removed_last in removed:
            if removed_last < begin or removed_first > last:
                continue
            if removed_first > begin:
                left.append(GrantedRange(begin, removed_first - 1, attempt))
            begin = removed_last + 1
        if begin <= last:
            left.append(GrantedRange(begin, last, attempt))
    return left


def offsets_without_message(
    partition: Partition, config: SubscriptionConfig, granted: Sequence[GrantedRange], records: LogSlice | bytes
) -> list[Range]:
    """Return the granted offsets without a message: all of a gap, else those of aborted transactions."""
    if not len(records):
        return [Range(first, last) for first, last, _ in granted]
    if config.share_isolation_level != READ_COMMITTED:
        return []
    aborted = partition.state.aborted(granted[0].first, granted[-1].last + 1)
    if not aborted:
        return []
    data = records.bytes() if isinstance(records, LogSlice) else records
    hidden = [
        (header.base_offset, header.last_offset)
        for _, header in split_batches(data)
        if header.is_control or is_aborted(header, aborted)
    ]
    return intersect_ranges(hidden, [(first, last) for first, last, _ in granted])


def newest_publish_time_ms(records: LogSlice | bytes) -> int:
    """Return the newest timestamp in the first of these batches, from its header; `UNKNOWN` if there is none."""
    if isinstance(records, LogSlice):
        data = records.file.pread(HEADER_SIZE, records.position) if len(records) else b""
    else:
        data = records
    if len(data) < HEADER_SIZE:
        return UNKNOWN
    return max(parse_header(data).max_timestamp, UNKNOWN)


class MessageClassifier:
    """Decodes batches for one configuration of a subscription. A new configuration needs a new classifier."""

    def __init__(self, config: SubscriptionConfig) -> None:
        self.config = config
        self._filter: Filter | None = compile_filter(config.headrace_filter) if config.headrace_filter else None
        self._has_priorities = bool(config.headrace_priority_slack_ms)
        self._expires = config.headrace_expiry_enable
        self._orders_keys = config.headrace_key_concurrency > 0

    def classify(
        self, data: bytes, from_offset: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> list[ClassifiedMessage]:
        """Return the messages of these batches from an offset on."""
        messages: list[ClassifiedMessage] = []
        for batch, header in split_batches(data):
            if header.is_control or is_aborted(header, aborted):
                continue
            messages += [
                self.classify_record(record)
                for record in read_records(batch, header, _UNPACKED_BYTES_MAX)
                if record.offset >= from_offset
            ]
        return messages

    def classify_record(self, record: BatchRecord) -> ClassifiedMessage:
        headers = record.headers
        return ClassifiedMessage(
            record.offset,
            priority_of(headers) if self._has_priorities and headers else PRIORITY_DEFAULT,
            record.key if self._orders_keys else None,  # not needed otherwise: saves memory
            record.timestamp_ms,
            expires_ms_of(headers, record.timestamp_ms) if self._expires and headers else None,
            self._filter is None or self._filter(record.key, headers),
        )


Served = dict[tuple[str, int], tuple[int, int]]
"""By topic and partition: the leader epoch in which it was last served here, and its log end offset at that time."""


class LeaseSource:
    """The partition with the messages of a shard."""

    def __init__(self, catalogue: Catalogue, topic: str, index: int, owner_id: UUID, served: Served) -> None:
        self._catalogue = catalogue
        self._partition_key = topic, index
        self._owner_id = owner_id
        self._served = served
        self._known: Partition | None = None

    def find(self) -> Partition:
        """Return the partition; raise unless this broker leads it."""
        partition = self._catalogue.partition(*self._partition_key)
        if partition is not self._known:
            if partition.topic_id != self._owner_id:
                raise UnknownTopicOrPartition(f"topic {self._partition_key[0]} was recreated")
            self._known = partition
        return partition

    def end_before(self, partition: Partition, reconciled_epoch: int) -> int:
        """Return the log end offset to which existing settlements apply: the end at the start of the current leader
        epoch, or when the partition was last served in this epoch. If more than one epoch began since the state was
        reconciled, return at most the end of `reconciled_epoch`: the log may have lost its end in any of them."""
        epoch, end_offset = self._served.get(self._partition_key, (-1, 0))
        end_offset = max(partition.epoch_start, end_offset if epoch == partition.leader_epoch else 0)
        known, end_of_epoch = partition.log.epochs.end_offset_for(reconciled_epoch, partition.log.end_offset)
        return min(end_offset, end_of_epoch) if known >= 0 else end_offset

    def stop_serving(self) -> None:
        """Record the log end offset: the partition may be served again in the same leader epoch."""
        try:
            partition = self.find()
        except HeadraceError:
            self._served.pop(self._partition_key, None)
        else:
            self._served[self._partition_key] = partition.leader_epoch, partition.log.end_offset
