"""The configuration of a topic: every name that Kafka 4.3 knows, with Headrace's defaults, and a few of our own.

Three defaults differ from Kafka's, on purpose: `retention.ms` is two weeks, `flush.messages` is 1 (an
acknowledged record is on disk), and `segment.bytes` may be small. A setting that has no meaning here is still
listed, because tools expect it, but accepts only the value that tells the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.configs import (
    BrokerName,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Setting,
    Synonym,
    alter,
    as_text,
    at_least,
    attribute,
    between,
    boolean,
    double,
    each_of,
    integer,
    long,
    not_offered,
    one_of,
    parse_all,
    settings_of,
    text,
    words,
)
from headrace.model.errors import InvalidConfig

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LONG_MAX = 2**63 - 1

Layers = Sequence[tuple[ConfigSource, Mapping[str, str]]]
"""Broker settings as given, strongest source first."""

ACKED = "acked"
"""Of retention.mode: what every subscription has settled goes."""

_NO_TIERS = "Tiered storage is not offered by this broker"


def _broker(*names: str) -> tuple[BrokerName, ...]:
    return tuple(BrokerName(name) for name in names)


def _times(stem: str, *units: str) -> tuple[BrokerName, ...]:
    factors = {"ms": 1, "minutes": 60_000, "hours": HOUR_MS}
    return tuple(BrokerName(f"{stem}.{unit}", factors[unit]) for unit in units)


def _throttled(value: Sequence[str]) -> str | None:
    if value == ("*",) or all(part.count(":") == 1 and part.replace(":", "").isdigit() for part in value):
        return None
    return "Must be the literal '*' or a list of replicas in the form partition:broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What is in force for one topic, typed. Names are Kafka's with underscores for dots."""

    cleanup_policy: tuple[str, ...] = words(
        ("delete",),
        "What happens to old segments: 'delete' drops them by retention, 'compact' keeps the last record of "
        "each key; both may be given.",
        check=each_of("compact", "delete"),
        broker_names=_broker("log.cleanup.policy"),
    )
    compression_gzip_level: int = integer(
        -1,
        "Level used where the broker itself compresses with gzip.",
        check=lambda level: None if level == -1 or 1 <= level <= 9 else "Value must be between 1 and 9 or equal to -1",
        broker_names=_broker("compression.gzip.level"),
    )
    compression_lz4_level: int = integer(
        9,
        "Level used where the broker itself compresses with lz4.",
        check=between(1, 17),
        broker_names=_broker("compression.lz4.level"),
    )
    compression_type: str = text(
        "producer",
        "'producer' keeps each batch as its producer compressed it; any other makes the broker recompress.",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_names=_broker("compression.type"),
    )
    compression_zstd_level: int = integer(
        3,
        "Level used where the broker itself compresses with zstd.",
        check=between(-131_072, 22),
        broker_names=_broker("compression.zstd.level"),
    )
    dedup_window_ms: int = long(
        0,
        "How long the headrace-dedup-id of a message is remembered: another message with the same one is not stored "
        "again. 0: not at all.",
        check=at_least(0),
    )
    delete_retention_ms: int = long(
        DAY_MS,
        "How long the mark of a deleted key stays readable in a compacted topic.",
        check=at_least(0),
        broker_names=_broker("log.cleaner.delete.retention.ms"),
    )
    expire_after_idle_ms: int = long(
        0,
        "A topic of one partition to which nothing was written for so long is deleted. 0: never.",
        check=at_least(0),
    )
    file_delete_delay_ms: int = long(
        60_000,
        "How long the file of a dropped segment may still be read by whoever has it open.",
        check=at_least(0),
        broker_names=_broker("log.segment.delete.delay.ms"),
    )
    flush_messages: int = long(
        1,
        "1: an acknowledgement waits for the fsync that it shares with its neighbours. Larger: records are "
        "acknowledged from memory and synced after that many; a power cut or kernel crash loses the "
        "acknowledged ones that were not synced, unless another replica has them.",
        check=at_least(1),
        broker_names=_broker("log.flush.interval.messages"),
    )
    flush_ms: int = long(
        LONG_MAX,
        "The longest that a record waits to be synced when flush.messages is larger than 1.",
        check=at_least(0),
        broker_names=_broker("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = words(
        (),
        "Kept for Kafka's tools, as partition:broker, or '*'; the rate holds for every replica that catches up.",
        check=_throttled,
    )
    index_interval_bytes: int = integer(
        4096,
        "About how many bytes of log lie between two entries of the offset index.",
        check=at_least(0),
        broker_names=_broker("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = words(
        (),
        "Kept for Kafka's tools, as partition:broker, or '*'; the rate holds for every replica that catches up.",
        check=_throttled,
    )
    local_retention_bytes: int = long(
        -2,
        "With tiered storage: the size kept on local disks; -2 means retention.bytes.",
        check=at_least(-2),
        broker_names=_broker("log.local.retention.bytes"),
    )
    local_retention_ms: int = long(
        -2,
        "With tiered storage: the time kept on local disks; -2 means retention.ms.",
        check=at_least(-2),
        broker_names=_broker("log.local.retention.ms"),
    )
    max_compaction_lag_ms: int = long(
        LONG_MAX,
        "The longest that a record of a compacted topic may stay uncompacted.",
        check=at_least(1),
        broker_names=_broker("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = integer(
        1_048_588,
        "The largest batch that is accepted, as sent (after compression).",
        check=at_least(0),
        broker_names=_broker("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        "How far a producer's timestamp may lie ahead of the broker's clock.",
        check=at_least(0),
        broker_names=_broker("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        "How far a producer's timestamp may lie behind the broker's clock.",
        check=at_least(0),
        broker_names=_broker("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = text(
        "CreateTime",
        "Whose time a record carries: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
        check=one_of("CreateTime", "LogAppendTime"),
        broker_names=_broker("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "The share of a log that must be uncompacted before compaction looks at it.",
        check=between(0, 1),
        broker_names=_broker("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = long(
        0,
        "The time that a record stays untouched by compaction.",
        check=at_least(0),
        broker_names=_broker("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = integer(
        1,
        "How many replicas must have a record before acks=all is answered; with fewer, produce is refused.",
        check=at_least(1),
        broker_names=_broker("min.insync.replicas"),
    )
    preallocate: bool = boolean(
        False,
        "Whether the file of a new segment gets its full size at once; accepted, but without effect here.",
        broker_names=_broker("log.preallocate"),
    )
    remote_log_copy_disable: bool = boolean(
        False, "With tiered storage: stop copying segments away.", check=not_offered((False,), _NO_TIERS)
    )
    remote_log_delete_on_disable: bool = boolean(
        False,
        "With tiered storage: drop what was copied when it is switched off.",
        check=not_offered((False,), _NO_TIERS),
    )
    remote_storage_enable: bool = boolean(
        False, "Whether old segments move to tiered storage.", check=not_offered((False,), _NO_TIERS)
    )
    retention_bytes: int = long(
        -1,
        "The size per partition beyond which the oldest segments are dropped; -1: no limit.",
        check=at_least(-1),
        broker_names=_broker("log.retention.bytes"),
    )
    retention_mode: str = text(
        "time",
        "When a message may go before retention.ms and retention.bytes say so: 'time' never, 'acked' when every "
        "subscription of its partition has settled it.",
        check=one_of("time", ACKED),
    )
    retention_ms: int = long(
        14 * DAY_MS,
        "The age beyond which segments are dropped; -1: no limit.",
        check=at_least(-1),
        broker_names=_times("log.retention", "ms", "minutes", "hours"),
    )
    segment_bytes: int = integer(
        1_073_741_824,
        "The size at which a new segment is begun. Retention drops whole segments.",
        check=at_least(14),
        broker_names=_broker("log.segment.bytes"),
    )
    segment_index_bytes: int = integer(
        10_485_760,
        "The size of an offset index at which a new segment is begun.",
        check=at_least(4),
        broker_names=_broker("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = long(
        0,
        "Up to how much earlier than segment.ms a segment may end, so that not all end at once.",
        check=at_least(0),
        broker_names=_times("log.roll.jitter", "ms", "hours"),
    )
    segment_ms: int = long(
        7 * DAY_MS,
        "The age at which a new segment is begun even if the current one is not full.",
        check=at_least(1),
        broker_names=_times("log.roll", "ms", "hours"),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Whether a replica that lacks acknowledged records may become leader when no other is left.",
        broker_names=_broker("unclean.leader.election.enable"),
    )

    @classmethod
    def build(cls, overrides: Mapping[str, str | None], defaults: TopicConfig) -> TopicConfig:
        """The overrides on top of the broker's defaults; raises `InvalidConfig` naming all that is wrong."""
        if not overrides:
            return defaults
        values = parse_all(TOPIC_SETTINGS, overrides, "topic")
        typed: dict[str, Any] = {attribute(name): value for name, value in values.items()}
        config = replace(defaults, **typed)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfig(
                "Conflict topic config setting: min.compaction.lag.ms "
                f"({config.min_compaction_lag_ms}) > max.compaction.lag.ms ({config.max_compaction_lag_ms})"
            )
        if config.retention_mode == ACKED and config.compacts:
            raise InvalidConfig(
                "Conflict topic config setting: with retention.mode=acked nothing is kept for the sake of its key; "
                "cleanup.policy must be delete"
            )
        return config

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies; the start of a log can always be moved on request."""
        return "delete" in self.cleanup_policy


TOPIC_SETTINGS: dict[str, Setting] = settings_of(TopicConfig)


def alter_topic(overrides: Mapping[str, str], changes: Iterable[ConfigChange], defaults: TopicConfig) -> dict[str, str]:
    """The topic's overrides after IncrementalAlterConfigs; raises rather than returning anything unusable."""
    altered = alter(
        TOPIC_SETTINGS,
        overrides,
        changes,
        inherited=lambda name: as_text(getattr(defaults, attribute(name))),
        kind="topic",
    )
    TopicConfig.build(altered, defaults)
    return altered


def describe_topic(overrides: Mapping[str, str], broker_layers: Layers) -> list[ConfigEntry]:
    """Every setting of a topic with its value, where that comes from, and what stands behind it."""
    layers = [(ConfigSource.DYNAMIC_TOPIC_CONFIG, overrides)]
    return [
        describe_setting(setting, BrokerName(name), _found_in((BrokerName(name),), layers), broker_layers)
        for name, setting in TOPIC_SETTINGS.items()
    ]


def describe_setting(
    setting: Setting, shown_as: BrokerName, stronger: list[Synonym], broker_layers: Layers
) -> ConfigEntry:
    """One entry, named and in the unit of `shown_as`: the topic's own name, or a broker's name for it."""
    by_name = {name.name: name for name in (*setting.broker_names, shown_as)}
    default_name = (setting.broker_names or (shown_as,))[0]
    synonyms = [
        *stronger,
        *_found_in(setting.broker_names, broker_layers),
        Synonym(default_name.name, as_text(default_name.from_topic(setting.default)), ConfigSource.DEFAULT_CONFIG),
    ]
    first = synonyms[0]
    value = first.value
    if by_name[first.name].factor != shown_as.factor:
        value = as_text(shown_as.from_topic(by_name[first.name].to_topic(int(value))))
    type_ = setting.type if shown_as.factor == 1 else ConfigType.INT
    return ConfigEntry(shown_as.name, value, first.source, type_, setting.read_only, setting.doc, tuple(synonyms))


def _found_in(names: Iterable[BrokerName], layers: Layers) -> list[Synonym]:
    """Where the setting is given, under any of the names, strongest first."""
    return [
        Synonym(name.name, layer[name.name], source) for source, layer in layers for name in names if name.name in layer
    ]
