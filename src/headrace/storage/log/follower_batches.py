"""Check the batches that a follower has fetched from its leader, before it appends them byte for byte. Pure.

- A Fetch response holds whole batches back to back. A last batch that is incomplete was cut by a size limit of the
  response, and the next response returns it again.
- The check does not need the log, so disk threads can check a large response, as long as its bytes do not change.
- Offsets and epochs never go back: a follower truncates to where its log agrees with the leader's before it fetches.
- Batches may be missing where the leader's log was compacted. Such gaps are recorded beside the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import google_crc32c

from headrace.storage.errors import InvalidFollowerAppend
from headrace.storage.segments.scan import COPY_BYTES_MAX, LENGTH_END
from headrace.wire.batches.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, crc32c, parse_header

_LENGTH_AND_MAGIC = Struct(">8xi4xb")


class FollowerBatches(NamedTuple):
    """Whole and undamaged batches in order, as returned by `check_follower_batches`."""

    data: memoryview
    headers: Sequence[BatchHeader]

    def check_follows(self, end_offset: int, epoch: int) -> None:
        """Raise InvalidFollowerAppend if a log with this end offset and latest epoch cannot continue with these."""
        if not self.headers:
            return
        first = self.headers[0]
        if first.base_offset < end_offset or first.leader_epoch < epoch:
            raise InvalidFollowerAppend(
                f"the batch at {first.base_offset} of epoch {first.leader_epoch} does not follow a log that ends at "
                f"{end_offset} with epoch {epoch}"
            )


def check_follower_batches(data: memoryview) -> FollowerBatches:
    """Check every whole batch at the beginning of these bytes. Raises InvalidFollowerAppend."""
    headers: list[BatchHeader] = []
    at = next_offset = 0
    epoch = -1
    while len(data) - at >= HEADER_SIZE:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(data, at)
        if magic != MAGIC or length + LENGTH_END < HEADER_SIZE:
            raise InvalidFollowerAppend(f"{length} bytes of magic {magic} after offset {next_offset} are not a batch")
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


def gaps_before(headers: Sequence[BatchHeader], next_offset: int) -> list[tuple[int, int]]:
    """For every missing range of offsets before or between these batches: its start and its end."""
    gaps = []
    for header in headers:
        if header.base_offset != next_offset:
            gaps.append((next_offset, header.base_offset))
        next_offset = header.next_offset
    return gaps


def _check_crc(crc_payload: memoryview, header: BatchHeader) -> None:
    crc = google_crc32c.value(bytes(crc_payload)) if len(crc_payload) <= COPY_BYTES_MAX else crc32c(crc_payload)
    if crc != header.crc:
        raise InvalidFollowerAppend(
            f"the batch at {header.base_offset} has CRC {crc:#010x}, its header says {header.crc:#010x}"
        )
