"""Topic configs: read, refused, altered and described as Kafka does."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.broker_configs import BrokerConfig
from headrace.model.configs import (
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Synonym,
    attribute_name,
    value_text,
)
from headrace.model.errors import HeadraceError, InvalidConfig, InvalidRequest
from headrace.model.topic_configs import TOPIC_SETTINGS, TopicConfig, alter_topic, describe_topic

DEFAULTS = TopicConfig()
WEEK_MS = 7 * 24 * 3_600_000

# As a new topic of Kafka 4.3.0 answers DescribeConfigs, but for what the docstring of topic_configs names.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "1",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": str(2 * WEEK_MS),
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": str(WEEK_MS),
    "unclean.leader.election.enable": "false",
}
OUR_DEFAULTS = {"dedup.window.ms": "0", "expire.after.idle.ms": "0", "retention.mode": "time"}


def described(overrides: dict[str, str], broker: BrokerConfig | None = None) -> dict[str, ConfigEntry]:
    layers = (broker or BrokerConfig()).layers
    return {entry.name: entry for entry in describe_topic(overrides, layers)}


def test_every_config_of_a_topic_is_described_with_its_default() -> None:
    entries = described({})
    assert {name: entry.value for name, entry in entries.items()} == KAFKA_DEFAULTS | OUR_DEFAULTS
    assert all(
        entry.source is ConfigSource.DEFAULT_CONFIG and entry.doc and not entry.read_only for entry in entries.values()
    )


def test_every_default_passes_its_own_check() -> None:
    for setting in TOPIC_SETTINGS.values():
        assert setting.parse(value_text(setting.default)) == setting.default


def test_settings_and_attributes_are_the_same_thing() -> None:
    assert [attribute_name(name) for name in TOPIC_SETTINGS] == [spec.name for spec in fields(TopicConfig)]


def test_overrides_become_typed_values_and_the_rest_stays() -> None:
    config = TopicConfig.build(
        {
            "retention.ms": " -1 ",
            "cleanup.policy": "compact, delete",
            "preallocate": "TRUE",
            "min.cleanable.dirty.ratio": "0.25",
        },
        DEFAULTS,
    )
    assert config.retention_ms == -1
    assert config.cleanup_policy == ("compact", "delete")
    assert config.compacts
    assert config.deletes
    assert config.preallocate is True
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.segment_bytes == DEFAULTS.segment_bytes


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "retention.ms",
            "soon",
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "0", "Value must be at least 14"),
        ("min.cleanable.dirty.ratio", "1.1", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "between 1 and 9"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("cleanup.policy", "shred", "must only contain: compact, delete"),
        ("cleanup.policy", "delete,delete", "duplicates"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("remote.storage.enable", "true", "does not support tiered storage"),
        ("leader.replication.throttled.replicas", "1-2", "partition:broker"),
        ("min.compaction.lag.ms", "9223372036854775808", "Not a number"),
        ("flush.messages", None, "Null value not supported"),
        ("retention.msec", "1", r"Unknown topic config name: retention.msec \(did you mean retention.ms\?\)"),
        ("zzz", "1", "Unknown topic config name: zzz$"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_the_rule(name: str, value: str | None, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        TopicConfig.build({name: value}, DEFAULTS)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.ms.*; .*segment\.bytes"):
        TopicConfig.build({"retention.ms": "x", "segment.bytes": "y", "flush.ms": "1"}, DEFAULTS)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="Conflict"):
        TopicConfig.build({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, DEFAULTS)


def test_an_override_is_described_before_what_stands_behind_it() -> None:
    broker = BrokerConfig.from_settings({"log.retention.hours": "2"})
    entry = described({"retention.ms": "5"}, broker)["retention.ms"]
    assert (entry.value, entry.source) == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert entry.synonyms == (
        Synonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        Synonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("log.retention.ms", str(2 * WEEK_MS), ConfigSource.DEFAULT_CONFIG),
    )


def test_a_value_from_the_broker_is_described_in_the_topics_unit() -> None:
    broker = BrokerConfig.from_settings({"log.retention.hours": "2"})
    entry = described({}, broker)["retention.ms"]
    assert (entry.value, entry.source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert entry.type is ConfigType.LONG
    assert entry.source is not ConfigSource.DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, ConfigChange("retention.ms", AlterOperation.SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "5"}, ConfigChange("retention.ms", AlterOperation.SET, "6"), {"retention.ms": "6"}),
        ({"retention.ms": "5"}, ConfigChange("retention.ms", AlterOperation.DELETE), {}),
        ({}, ConfigChange("retention.ms", AlterOperation.DELETE), {}),
        ({}, ConfigChange("no.such.name", AlterOperation.DELETE), {}),
        (
            {},
            ConfigChange("cleanup.policy", AlterOperation.APPEND, "compact"),
            {"cleanup.policy": "delete,compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            ConfigChange("cleanup.policy", AlterOperation.APPEND, "compact,delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        (
            {"cleanup.policy": "compact,delete"},
            ConfigChange("cleanup.policy", AlterOperation.SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
    ],
)
def test_a_change_is_made_to_the_overrides(before: dict[str, str], change: ConfigChange, after: dict[str, str]) -> None:
    assert alter_topic(before, [change], DEFAULTS) == after


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ([ConfigChange("retention.ms", AlterOperation.SET, "x")], InvalidConfig, "Not a number"),
        ([ConfigChange("retention.ms", AlterOperation.SET, None)], InvalidRequest, "Null value"),
        ([ConfigChange("retention.ms", AlterOperation.APPEND, "5")], InvalidConfig, "type is not LIST"),
        ([ConfigChange("no.such.name", AlterOperation.SET, "5")], InvalidConfig, "Unknown topic config name"),
        (
            [ConfigChange("cleanup.policy", AlterOperation.APPEND, "shred")],
            InvalidConfig,
            "must only contain",
        ),
        (
            [
                ConfigChange("retention.ms", AlterOperation.SET, "5"),
                ConfigChange("retention.ms", AlterOperation.DELETE),
            ],
            InvalidRequest,
            "duplicate config keys",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(
    changes: list[ConfigChange], error: type[HeadraceError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        alter_topic({}, changes, DEFAULTS)


@given(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text(max_size=30))
def test_any_text_is_either_read_or_refused(name: str, value: str) -> None:
    try:
        config = TopicConfig.build({name: value}, DEFAULTS)
    except InvalidConfig:
        return
    # What was read prints as something that is read as the same.
    typed = getattr(config, attribute_name(name))
    assert TOPIC_SETTINGS[name].parse(value_text(typed)) == typed
