"""When messages were published, as far as their batch tells it without being opened."""

from __future__ import annotations

from headrace.machines.leases import UNKNOWN
from headrace.storage.reading import LogSlice
from headrace.wire.batch import HEADER_SIZE, parse_header


def published_in(records: LogSlice | bytes) -> int:
    """The newest timestamp in the first of these batches; `UNKNOWN` if there is none."""
    if isinstance(records, LogSlice):
        data = records.file.pread(HEADER_SIZE, records.position) if len(records) else b""
    else:
        data = records
    if len(data) < HEADER_SIZE:
        return UNKNOWN
    return max(parse_header(data).max_timestamp, UNKNOWN)
