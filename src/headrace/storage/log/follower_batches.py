"""Taking over batches of a leader: byte for byte, with the offsets and epochs that the leader has given them.

A fetch answers with whole batches, back to back; a last one that is not whole was cut by a limit of the answer, and
comes again with the next. What arrives is checked first (`check_follower_batches`: pure, so a large answer can be
checked in the disk threads, as long as its bytes stay as they are), then appended in one step without a wait. Batches
may be missing where the leader's log was compacted: such gaps are written down (see copied_gaps). Going back is
refused: whoever follows has cut its log to where it agrees with the leader's before it copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from headrace.runtime.disk import DiskFailed, DiskFull, File
from headrace.storage.errors import InvalidFollowerAppend
from headrace.storage.segments.scan import COPY_BYTES_MAX, LENGTH_END, to_replayed_batch
from headrace.storage.segments.segment import NEVER_SYNCED, Segment
from headrace.wire.batches.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, crc32c, parse_header

if TYPE_CHECKING:
    from headrace.storage.log.log import Log

_LENGTH_AND_MAGIC = Struct(">8xi4xb")


class FollowerBatches(NamedTuple):
    """Whole and unharmed batches that follow each other, as `check_follower_batches` has found them."""

    data: memoryview
    headers: Sequence[BatchHeader]


def check_follower_batches(data: memoryview) -> FollowerBatches:
    """The whole batches at the beginning of these bytes, each of them checked. Raises InvalidFollowerAppend."""
    headers: list[BatchHeader] = []
    at = next_offset = 0
    epoch = -1
    while len(data) - at >= HEADER_SIZE:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(data, at)
        if magic != MAGIC or length + LENGTH_END < HEADER_SIZE:
            raise InvalidFollowerAppend(f"{length} bytes of magic {magic} behind offset {next_offset} are no batch")
        end = at + length + LENGTH_END
        if end > len(data):
            break
        header = parse_header(data, at)
        _check_crc(data[at + CRC_START : end], header)
        if header.base_offset < next_offset or header.last_offset_delta < 0 or header.leader_epoch < epoch:
            raise InvalidFollowerAppend(f"the batch at {header.base_offset} of epoch {header.leader_epoch} goes back")
        headers.append(header)
        at, next_offset, epoch = end, header.next_offset, header.leader_epoch
    if len(data) and not headers:
        raise InvalidFollowerAppend(f"{len(data)} bytes hold no whole batch")
    return FollowerBatches(data[:at], headers)


def append_follower_batches(log: Log, copied: FollowerBatches) -> int:
    """See `Log.append_copied`. One write for all the batches that go to one segment."""
    log.ensure_usable()
    data, headers = copied
    if headers:
        _ensure_follows(log, headers[0])
    at = position = 0
    while at < len(headers):
        first, segment = headers[at], log.active
        if segment.size and log.must_roll(segment, first.size_bytes, first.last_offset):
            segment = log.roll()
        try:
            file = log.begin(segment)
            end, size = _batches_that_fit(log, segment, headers, at)
            _write_to_segment(log, segment, file, data[position : position + size], headers[at:end])
        except DiskFull:
            raise
        except DiskFailed as error:
            log.fail(error)
            raise
        at, position = end, position + size
    return log.end_offset


def _check_crc(crc_payload: memoryview, header: BatchHeader) -> None:
    crc = google_crc32c.value(bytes(crc_payload)) if len(crc_payload) <= COPY_BYTES_MAX else crc32c(crc_payload)
    if crc != header.crc:
        raise InvalidFollowerAppend(
            f"the batch at {header.base_offset} has CRC {crc:#010x}, its header says {header.crc:#010x}"
        )


def _ensure_follows(log: Log, first: BatchHeader) -> None:
    if first.base_offset < log.end_offset or first.leader_epoch < log.epochs.latest:
        raise InvalidFollowerAppend(
            f"the batch at {first.base_offset} of epoch {first.leader_epoch} does not follow a log that ends at "
            f"{log.end_offset} with epoch {log.epochs.latest}"
        )


def _batches_that_fit(log: Log, segment: Segment, headers: Sequence[BatchHeader], at: int) -> tuple[int, int]:
    """How many batches go to this segment, at least the first: the number of the next one, and their bytes."""
    size = headers[at].size_bytes
    for end in range(at + 1, len(headers)):
        header = headers[end]
        if log.must_roll(segment, size + header.size_bytes, header.last_offset):
            return end, size
        size += header.size_bytes
    return len(headers), size


def _write_to_segment(log: Log, segment: Segment, file: File, data: memoryview, headers: Sequence[BatchHeader]) -> None:
    gaps = _gaps_before(headers, log.end_offset)
    try:
        if gaps:
            segment.copy_gaps(gaps)
        try:
            position = file.append((data,))
        except DiskFull:
            if gaps and segment.copied is not None:
                segment.copied.take_back(len(gaps))
            raise
    except DiskFull:
        segment.syncing = NEVER_SYNCED  # a part may have been written, and cut off again in memory only
        raise
    assert position == segment.size
    interval, begin = log.config.index_interval_bytes, 0
    for header in headers:
        segment.note(header, header.last_offset, position + begin, interval)
        if header.leader_epoch != log.epochs.latest:
            log.epochs.assign(header.leader_epoch, header.base_offset)
        log.state.replay(to_replayed_batch(data[begin : begin + header.size_bytes], header))
        begin += header.size_bytes
    log.end_offset = headers[-1].next_offset
    log.size_bytes += begin
    log.unsaved_bytes += begin


def _gaps_before(headers: Sequence[BatchHeader], next_offset: int) -> list[tuple[int, int]]:
    """Pairs: where the batch before ends, and where one begins that does not follow at once."""
    gaps = []
    for header in headers:
        if header.base_offset != next_offset:
            gaps.append((next_offset, header.base_offset))
        next_offset = header.next_offset
    return gaps
