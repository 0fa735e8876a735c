"""Transaction markers in control batches."""

from __future__ import annotations

import pytest

from headrace.wire.batches.batch import (
    CONTROL,
    BatchRecord,
    Marker,
    build_batch,
    build_marker,
    check_crc,
    parse_header,
    parse_marker,
)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_survives_a_round_trip(is_commit: bool) -> None:
    batch = memoryview(build_marker(77, 3, Marker(is_commit, 12), 1_234))
    header = parse_header(batch)
    check_crc(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, -1)
    assert header.is_control
    assert header.is_transactional
    assert parse_marker(batch, header) == Marker(is_commit, 12)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"", b"\0\0"), (b"\0\0\0\7", b"\0\0\0\0\0\0"), (b"\0\0\0\1", b""), (b"\0\0\0\1", None)],
)
def test_other_control_records_are_not_markers(key: bytes | None, value: bytes | None) -> None:
    batch = memoryview(build_batch([BatchRecord(key=key, value=value)], attributes=CONTROL))
    assert parse_marker(batch, parse_header(batch)) is None
