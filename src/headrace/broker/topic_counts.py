"""Counters of a topic: plain numbers on the hot path, converted to metrics on a scrape."""

from __future__ import annotations

from headrace.model.partition_record import Nodes


class TopicCounts:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "duplicates",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "in_sync_gained",
        "in_sync_lost",
        "produces",
        "records_in",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0
        self.duplicates = 0  # messages dropped because of their dedup id
        self.produces = 0
        self.fetches = 0
        self.failed_produces = 0
        self.failed_fetches = 0
        self.in_sync_lost = 0  # out-of-sync replicas of partitions that this broker leads
        self.in_sync_gained = 0

    def produced(self, size_bytes: int, record_count: int) -> None:
        self.produces += 1
        self.bytes_in += size_bytes
        self.records_in += record_count

    def in_sync_changed(self, before: Nodes, after: Nodes) -> None:
        self.in_sync_lost += len(set(before).difference(after))
        self.in_sync_gained += len(set(after).difference(before))

    def fetched(self, size_bytes: int) -> None:
        self.fetches += 1
        self.bytes_out += size_bytes
