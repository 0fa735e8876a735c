"""Write snapshots: the durable state of a subscription as events of the acks log, in parts of bounded size. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from headrace.machines.queues.delivery_failures import DeliveryFailures
from headrace.machines.queues.settled_offsets import SettledOffsets
from headrace.wire.state_records.acks_records import SnapshotEvent

FailedRange: TypeAlias = tuple[int, int, int, int, str, bool]

_FAILURE_BYTES = 100  # upper bound for five numbers with commas
_REASON_FACTOR = 6  # bytes per character in JSON, at most


def snapshot_events(
    settled: SettledOffsets,
    failures: DeliveryFailures,
    snapshot_id: int,
    chunk_bytes_max: int,
    now_ms: int,
    subscriptions: int,
) -> list[SnapshotEvent]:
    slices = settled.slices(chunk_bytes_max * 3 // 4)  # base64 adds a third
    contents: list[tuple[bytes, list[FailedRange]]] = [(piece, []) for piece in slices]
    contents += [(b"", piece) for piece in _failed_range_chunks(failures, chunk_bytes_max)]
    contents = contents or [(b"", [])]
    return [
        SnapshotEvent(
            now_ms, snapshot_id, number, len(contents), subscriptions, settled.floor, settled=piece, failed=failed
        )
        for number, (piece, failed) in enumerate(contents, 1)
    ]


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
