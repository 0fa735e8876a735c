"""Headers of the batches of a producer."""

from __future__ import annotations

from headrace.wire.batches.batch import BatchHeader


def batch(
    sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7, timestamp: int = 1_000, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        size_bytes=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )
