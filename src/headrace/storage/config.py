"""Configuration of a log (per topic, replaceable at run time) and of a data folder."""

from __future__ import annotations

import math

import msgspec

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
DAY_MS = 86_400_000
LONG_MAX = 2**63 - 1


class LogConfig(msgspec.Struct, frozen=True):
    """The fields are named like Kafka's topic configs; -1 means no limit."""

    segment_bytes: int = GIB
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4 * KIB
    index_bytes_max: int = 10 * MIB
    retention_ms: int = 14 * DAY_MS
    retention_bytes: int = -1
    flush_messages: int = 1
    compacts: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = DAY_MS


class StoreConfig(msgspec.Struct, frozen=True):
    """Maintenance of a data folder.

    A checkpoint bounds what recovery must scan. It is written after `checkpoint_bytes`, after `checkpoint_seconds` if
    at least a megabyte was appended, and after `checkpoint_idle_seconds` in any case.
    """

    reserve_bytes: int | None = None  # None: 5% of the disk, at most 1 GiB
    space_check_seconds: float = 1.0
    checkpoint_bytes: int = 64 * MIB
    checkpoint_seconds: float = 5.0
    checkpoint_idle_seconds: float = 300.0
    retention_check_seconds: float = 300.0
    scrub_bytes_per_second: int = 8 * MIB  # 0: no scrub
    cleaner_enabled: bool = True
    cleaner_backoff_seconds: float = 15.0
    cleaner_map_bytes: int = 128 * MIB
    cleaner_bytes_per_second: float = math.inf
