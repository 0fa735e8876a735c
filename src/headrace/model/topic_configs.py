"""The configuration of a topic: every topic config of Kafka 4.3 and Headrace's own, with Headrace's defaults.

Three defaults differ from Kafka's on purpose: `retention.ms` is two weeks, `flush.messages` is 1 (an
acknowledged record is on disk), and `segment.bytes` may be small. A setting that has no meaning in Headrace is
still listed, because tools expect it, but accepts only the value that describes what Headrace does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.configs import (
    DAY_MS,
    HOUR_MS,
    BrokerConfigName,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Setting,
    Synonym,
    alter,
    at_least,
    attribute_name,
    between,
    boolean,
    double,
    each_of,
    integer,
    long,
    one_of,
    only_supported,
    parse_all,
    settings_of,
    string_list,
    text,
    value_text,
)
from headrace.model.errors import InvalidConfig

LONG_MAX = 2**63 - 1

Layers = Sequence[tuple[ConfigSource, Mapping[str, str]]]
"""Broker settings as given, strongest source first."""

ACKED = "acked"
"""A value of retention.mode: delete messages that every subscription has settled."""

_NO_TIERS = "Headrace does not support tiered storage"


def _broker(*names: str) -> tuple[BrokerConfigName, ...]:
    return tuple(BrokerConfigName(name) for name in names)


def _times(stem: str, *units: str) -> tuple[BrokerConfigName, ...]:
    factors = {"ms": 1, "minutes": 60_000, "hours": HOUR_MS}
    return tuple(BrokerConfigName(f"{stem}.{unit}", factors[unit]) for unit in units)


def _throttled(value: Sequence[str]) -> str | None:
    if value == ("*",) or all(part.count(":") == 1 and part.replace(":", "").isdigit() for part in value):
        return None
    return "Must be the literal '*' or a list of replicas in the form partition:broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective configuration of a topic as typed values. Names are Kafka's, with underscores for dots."""

    cleanup_policy: tuple[str, ...] = string_list(
        ("delete",),
        "What to do with old segments. 'delete' deletes them by retention time and size, 'compact' keeps the last "
        "record of each key. Both may be given.",
        check=each_of("compact", "delete"),
        broker_names=_broker("log.cleanup.policy"),
    )
    compression_gzip_level: int = integer(
        -1,
        "The compression level when the broker recompresses batches with gzip.",
        check=lambda level: None if level == -1 or 1 <= level <= 9 else "Value must be between 1 and 9 or equal to -1",
        broker_names=_broker("compression.gzip.level"),
    )
    compression_lz4_level: int = integer(
        9,
        "The compression level when the broker recompresses batches with lz4.",
        check=between(1, 17),
        broker_names=_broker("compression.lz4.level"),
    )
    compression_type: str = text(
        "producer",
        "'producer' keeps each batch as the producer compressed it. With any other value the broker recompresses.",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_names=_broker("compression.type"),
    )
    compression_zstd_level: int = integer(
        3,
        "The compression level when the broker recompresses batches with zstd.",
        check=between(-131_072, 22),
        broker_names=_broker("compression.zstd.level"),
    )
    dedup_window_ms: int = long(
        0,
        "The deduplication window. The broker does not store a message whose headrace-dedup-id was used by another "
        "message in this many milliseconds. 0: no deduplication.",
        check=at_least(0),
    )
    delete_retention_ms: int = long(
        DAY_MS,
        "How long compaction keeps the tombstone of a deleted key.",
        check=at_least(0),
        broker_names=_broker("log.cleaner.delete.retention.ms"),
    )
    expire_after_idle_ms: int = long(
        0,
        "Delete a single-partition topic after nothing was written to it for this many milliseconds. 0: never.",
        check=at_least(0),
    )
    file_delete_delay_ms: int = long(
        60_000,
        "How long to wait before deleting the file of a removed segment, so that readers can finish.",
        check=at_least(0),
        broker_names=_broker("log.segment.delete.delay.ms"),
    )
    flush_messages: int = long(
        1,
        "1: the broker acknowledges records after an fsync, which concurrent writes share. Larger: the broker "
        "acknowledges records from memory and forces an fsync after this many; a power failure or kernel crash then "
        "loses acknowledged records that were not synced, unless another replica has them.",
        check=at_least(1),
        broker_names=_broker("log.flush.interval.messages"),
    )
    flush_ms: int = long(
        LONG_MAX,
        "The maximum time before a record is synced to disk when flush.messages is larger than 1.",
        check=at_least(0),
        broker_names=_broker("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = string_list(
        (),
        "Accepted for Kafka's tools, as partition:broker or '*', without effect: the throttled rate applies to every "
        "replica that is catching up.",
        check=_throttled,
    )
    index_interval_bytes: int = integer(
        4096,
        "The approximate number of bytes of log between two entries of the offset index.",
        check=at_least(0),
        broker_names=_broker("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = string_list(
        (),
        "Accepted for Kafka's tools, as partition:broker or '*', without effect: the throttled rate applies to every "
        "replica that is catching up.",
        check=_throttled,
    )
    local_retention_bytes: int = long(
        -2,
        "With tiered storage: the size to keep on local disks. -2: the value of retention.bytes.",
        check=at_least(-2),
        broker_names=_broker("log.local.retention.bytes"),
    )
    local_retention_ms: int = long(
        -2,
        "With tiered storage: how long to keep segments on local disks. -2: the value of retention.ms.",
        check=at_least(-2),
        broker_names=_broker("log.local.retention.ms"),
    )
    max_compaction_lag_ms: int = long(
        LONG_MAX,
        "The maximum time that a record of a compacted topic stays uncompacted.",
        check=at_least(1),
        broker_names=_broker("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = integer(
        1_048_588,
        "The maximum size of a record batch, after compression.",
        check=at_least(0),
        broker_names=_broker("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        "How far the timestamp of a record may be ahead of the broker's clock.",
        check=at_least(0),
        broker_names=_broker("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        "How far the timestamp of a record may be behind the broker's clock.",
        check=at_least(0),
        broker_names=_broker("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = text(
        "CreateTime",
        "The timestamp of a record: the one set by the producer (CreateTime) or the broker's time when it appends "
        "the record (LogAppendTime).",
        check=one_of("CreateTime", "LogAppendTime"),
        broker_names=_broker("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "Compact a log when this fraction of it is uncompacted.",
        check=between(0, 1),
        broker_names=_broker("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = long(
        0,
        "The minimum time that a record stays uncompacted.",
        check=at_least(0),
        broker_names=_broker("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = integer(
        1,
        "The minimum number of in-sync replicas for a write with acks=all. With fewer, the broker rejects such writes.",
        check=at_least(1),
        broker_names=_broker("min.insync.replicas"),
    )
    preallocate: bool = boolean(
        False,
        "Preallocate the file of a new segment. Accepted, but without effect in Headrace.",
        broker_names=_broker("log.preallocate"),
    )
    remote_log_copy_disable: bool = boolean(
        False, "With tiered storage: stop copying segments to it.", check=only_supported((False,), _NO_TIERS)
    )
    remote_log_delete_on_disable: bool = boolean(
        False,
        "With tiered storage: delete the remote segments when it is disabled.",
        check=only_supported((False,), _NO_TIERS),
    )
    remote_storage_enable: bool = boolean(
        False, "Move old segments to tiered storage.", check=only_supported((False,), _NO_TIERS)
    )
    retention_bytes: int = long(
        -1,
        "Delete the oldest segments of a partition when its log exceeds this size. -1: no limit.",
        check=at_least(-1),
        broker_names=_broker("log.retention.bytes"),
    )
    retention_mode: str = text(
        "time",
        "'time' deletes messages by retention.ms and retention.bytes only. 'acked' also deletes a message as soon as "
        "every subscription of its partition has settled it.",
        check=one_of("time", ACKED),
    )
    retention_ms: int = long(
        14 * DAY_MS,
        "Delete segments that are older than this. -1: no limit.",
        check=at_least(-1),
        broker_names=_times("log.retention", "ms", "minutes", "hours"),
    )
    segment_bytes: int = integer(
        1_073_741_824,
        "The maximum size of a segment. Retention deletes whole segments.",
        check=at_least(14),
        broker_names=_broker("log.segment.bytes"),
    )
    segment_index_bytes: int = integer(
        10_485_760,
        "The maximum size of the offset index of a segment.",
        check=at_least(4),
        broker_names=_broker("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = long(
        0,
        "The maximum random time to subtract from segment.ms, so that segments do not all roll at the same time.",
        check=at_least(0),
        broker_names=_times("log.roll.jitter", "ms", "hours"),
    )
    segment_ms: int = long(
        7 * DAY_MS,
        "The maximum age of the active segment: the log rolls to a new segment even if the current one is not full.",
        check=at_least(1),
        broker_names=_times("log.roll", "ms", "hours"),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Allow a replica that may lack acknowledged records to become leader when no other replica is available. "
        "Such an election can lose acknowledged records.",
        broker_names=_broker("unclean.leader.election.enable"),
    )

    @classmethod
    def build(cls, overrides: Mapping[str, str | None], defaults: TopicConfig) -> TopicConfig:
        """Apply the overrides to the broker's defaults; `InvalidConfig` lists every bad one."""
        if not overrides:
            return defaults
        values = parse_all(TOPIC_SETTINGS, overrides, "topic")
        typed: dict[str, Any] = {attribute_name(name): value for name, value in values.items()}
        config = replace(defaults, **typed)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfig(
                "Conflict topic config setting: min.compaction.lag.ms "
                f"({config.min_compaction_lag_ms}) > max.compaction.lag.ms ({config.max_compaction_lag_ms})"
            )
        if config.retention_mode == ACKED and config.compacts:
            raise InvalidConfig(
                "Conflict topic config setting: retention.mode=acked cannot be combined with compaction; "
                "set cleanup.policy=delete"
            )
        return config

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies. DeleteRecords works with every policy."""
        return "delete" in self.cleanup_policy


TOPIC_SETTINGS: dict[str, Setting] = settings_of(TopicConfig)


def alter_topic(overrides: Mapping[str, str], changes: Iterable[ConfigChange], defaults: TopicConfig) -> dict[str, str]:
    """Return the topic's overrides after IncrementalAlterConfigs; raise if the resulting config is invalid."""
    altered = alter(
        TOPIC_SETTINGS,
        overrides,
        changes,
        inherited=lambda name: value_text(getattr(defaults, attribute_name(name))),
        kind="topic",
    )
    TopicConfig.build(altered, defaults)
    return altered


def describe_topic(overrides: Mapping[str, str], broker_layers: Layers) -> list[ConfigEntry]:
    """List every setting of a topic with its value, the source of the value, and its synonyms."""
    layers = [(ConfigSource.DYNAMIC_TOPIC_CONFIG, overrides)]
    return [
        describe_setting(setting, BrokerConfigName(name), _found_in((BrokerConfigName(name),), layers), broker_layers)
        for name, setting in TOPIC_SETTINGS.items()
    ]


def describe_setting(
    setting: Setting, shown_as: BrokerConfigName, stronger: list[Synonym], broker_layers: Layers
) -> ConfigEntry:
    """Describe one setting under the name and in the unit of `shown_as`: the topic config, or a broker synonym."""
    by_name = {name.name: name for name in (*setting.broker_names, shown_as)}
    default_name = (setting.broker_names or (shown_as,))[0]
    synonyms = [
        *stronger,
        *_found_in(setting.broker_names, broker_layers),
        Synonym(default_name.name, value_text(default_name.from_topic(setting.default)), ConfigSource.DEFAULT_CONFIG),
    ]
    first = synonyms[0]
    value = first.value
    if by_name[first.name].factor != shown_as.factor:
        value = value_text(shown_as.from_topic(by_name[first.name].to_topic(int(value))))
    type_ = setting.type if shown_as.factor == 1 else ConfigType.INT
    return ConfigEntry(shown_as.name, value, first.source, type_, setting.read_only, setting.doc, tuple(synonyms))


def _found_in(names: Iterable[BrokerConfigName], layers: Layers) -> list[Synonym]:
    """List the layers that set this setting under any of its names, strongest first."""
    return [
        Synonym(name.name, layer[name.name], source) for source, layer in layers for name in names if name.name in layer
    ]
