"""Broker configs: given by Kafka's names, and the defaults of topics."""

from __future__ import annotations

import tomllib

import pytest

from headrace.model.broker_configs import BROKER_SETTINGS, BrokerConfig, flatten
from headrace.model.configs import AlterOperation, ConfigChange, ConfigSource, ConfigType, value_text
from headrace.model.errors import InvalidConfig, InvalidRequest
from headrace.model.kafka_only_configs import WITHOUT_EFFECT, replacement_of

SET, APPEND, DELETE = AlterOperation.SET, AlterOperation.APPEND, AlterOperation.DELETE


def test_without_settings_everything_has_its_default() -> None:
    config = BrokerConfig.from_settings({})
    assert config == BrokerConfig()
    assert all(entry.source is ConfigSource.DEFAULT_CONFIG for entry in config.describe())


def test_every_default_passes_its_own_check() -> None:
    for setting in BROKER_SETTINGS.values():
        assert setting.parse(value_text(setting.default)) == setting.default


def test_settings_become_typed_values() -> None:
    config = BrokerConfig.from_settings(
        {"num.partitions": "8", "auto.create.topics.enable": "false", "message.max.bytes": "2000"}
    )
    assert config.num_partitions == 8
    assert config.auto_create_topics_enable is False
    assert config.topic_defaults.max_message_bytes == 2000


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1", "log.retention.ms": "1"}, 1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_a_time_wins(settings: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig.from_settings(settings).topic_defaults.retention_ms == retention_ms


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"num.partition": "8"},
            r"Unknown broker config name: num.partition \(did you mean num.partitions\?\)",
        ),
        ({"listeners": "PLAINTEXT://:9092"}, "listeners cannot be set here: set the address with --kafka"),
        ({"ssl.keystore.location": "x", "log.dirs": "/d"}, r"ssl\.keystore.*; log\.dirs.*--data"),
        ({"num.partitions": "0"}, "Value must be at least 1"),
        ({"num.partitions": "x", "message.max.bytes": "-1"}, r"num\.partitions.*; .*message\.max\.bytes"),
        ({"log.roll.hours": "0"}, "log.roll.hours: Value must be at least 1"),
        ({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"}, "larger than"),
        ({"queued.max.request.bytes": "1000"}, "queued.max.request.bytes is smaller than"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        BrokerConfig.from_settings(settings)


def test_what_only_tunes_kafka_is_accepted_and_listed_as_without_effect() -> None:
    config = BrokerConfig.from_settings({"num.io.threads": "16", "num.partitions": "8", "process.roles": "broker"})
    assert (config.num_partitions, config.without_effect) == (8, ("num.io.threads", "process.roles"))
    assert config.static == {"num.partitions": "8"}


def test_what_has_no_effect_cannot_be_set_while_the_broker_runs() -> None:
    with pytest.raises(InvalidRequest, match=r"no effect in Headrace: num\.io\.threads"):
        BrokerConfig().altered([ConfigChange("num.io.threads", AlterOperation.SET, "16")])


def test_no_config_is_both_a_setting_and_without_effect() -> None:
    assert not WITHOUT_EFFECT & BROKER_SETTINGS.keys()
    assert not [name for name in (*WITHOUT_EFFECT, *BROKER_SETTINGS) if replacement_of(name)]


def test_the_units_of_one_setting_are_described_alike() -> None:
    config = BrokerConfig.from_settings({"log.retention.hours": "2"})
    entries = {entry.name: entry for entry in config.describe()}
    assert entries["log.retention.ms"].value == "7200000"
    assert entries["log.retention.minutes"].value == "120"
    assert entries["log.retention.hours"].value == "2"
    assert entries["log.retention.hours"].type is ConfigType.INT
    assert entries["log.retention.ms"].source is ConfigSource.STATIC_BROKER_CONFIG


def test_what_is_described_is_every_setting_once_and_sorted() -> None:
    names = [entry.name for entry in BrokerConfig().describe()]
    assert names == sorted(BROKER_SETTINGS)


def test_topic_defaults_can_be_altered_while_the_broker_runs() -> None:
    config = BrokerConfig.from_settings({"log.retention.ms": "5"})
    altered = config.altered([ConfigChange("log.retention.ms", SET, "6")])
    assert altered.topic_defaults.retention_ms == 6
    assert altered.dynamic == {"log.retention.ms": "6"}
    (entry,) = (entry for entry in altered.describe() if entry.name == "log.retention.ms")
    assert [synonym.source for synonym in entry.synonyms] == [
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
        ConfigSource.DEFAULT_CONFIG,
    ]
    back = altered.altered([ConfigChange("log.retention.ms", DELETE)])
    assert back == config


def test_an_altered_coarse_unit_wins_over_a_fine_one_given_at_start() -> None:
    config = BrokerConfig.from_settings({"log.retention.ms": "5"}, {"log.retention.hours": "1"})
    assert config.topic_defaults.retention_ms == 3_600_000


def test_lists_are_appended_to_what_is_in_force() -> None:
    altered = BrokerConfig().altered([ConfigChange("log.cleanup.policy", APPEND, "compact")])
    assert altered.topic_defaults.cleanup_policy == ("delete", "compact")


def test_settings_that_are_read_at_start_cannot_be_altered() -> None:
    with pytest.raises(InvalidRequest, match=r"dynamically: num\.partitions; restart with --set"):
        BrokerConfig().altered([ConfigChange("num.partitions", SET, "9")])
    (entry,) = (entry for entry in BrokerConfig().describe() if entry.name == "num.partitions")
    assert entry.read_only


@pytest.mark.parametrize(
    "name",
    [
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "max.connections",
        "max.connections.per.ip",
    ],
)
def test_settings_that_are_looked_at_anew_can_be_altered_and_say_so(name: str) -> None:
    altered = BrokerConfig().altered([ConfigChange(name, SET, "1000")])
    (entry,) = (entry for entry in altered.describe() if entry.name == name)
    assert (entry.value, entry.source, entry.read_only) == ("1000", ConfigSource.DYNAMIC_BROKER_CONFIG, False)


def test_names_may_be_bare_or_quoted_in_toml() -> None:
    table = tomllib.loads(
        """
        [broker]
        num.partitions = 8
        "log.retention.ms" = 5
        log.retention.bytes = 100
        auto.create.topics.enable = false
        log.cleanup.policy = ["compact", "delete"]
        """
    )
    assert flatten(table["broker"]) == {
        "num.partitions": "8",
        "log.retention.ms": "5",
        "log.retention.bytes": "100",
        "auto.create.topics.enable": "false",
        "log.cleanup.policy": "compact,delete",
    }


def test_a_toml_value_that_is_no_setting_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="a number, text or list is expected"):
        flatten(tomllib.loads("num.partitions = 2020-01-01"))
