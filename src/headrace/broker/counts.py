"""What went in and out of a topic: plain numbers on the hot path, turned into metrics when somebody asks."""

from __future__ import annotations


class TopicCounts:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "produces",
        "records_in",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0
        self.produces = 0
        self.fetches = 0
        self.failed_produces = 0
        self.failed_fetches = 0

    def produced(self, size_bytes: int, record_count: int) -> None:
        self.produces += 1
        self.bytes_in += size_bytes
        self.records_in += record_count

    def fetched(self, size_bytes: int) -> None:
        self.fetches += 1
        self.bytes_out += size_bytes
