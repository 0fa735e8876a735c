"""The configuration of a broker, under Kafka's names: `--set NAME=VALUE`, or a table in the TOML file.

In TOML the table is `[broker]`, and a name may be bare or quoted: `num.partitions = 8` and
`"num.partitions" = 8` are equivalent (`flatten` turns the former into the latter).

Broker configs also provide the defaults of topic and group configs: `log.retention.ms` is the default of a topic's
`retention.ms`. They are derived from the topic and group settings rather than declared here. The defaults of topics and
the settings in `_DYNAMIC` can be changed while the broker runs; all other settings are read at startup.

Defaults that differ from Kafka's suit a single broker on a laptop: see docs/decisions/001-embedded-defaults.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from headrace.model.configs import (
    BrokerConfigName,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Setting,
    Value,
    alter,
    at_least,
    attribute_name,
    boolean,
    double,
    each_of,
    integer,
    long,
    one_of_any_case,
    parse_all,
    settings_of,
    string_list,
    text,
    value_text,
)
from headrace.model.errors import InvalidConfig, InvalidRequest
from headrace.model.kafka_only_configs import WITHOUT_EFFECT, replacement_of
from headrace.model.subscription_configs import SUBSCRIPTION_SETTINGS, SubscriptionConfig
from headrace.model.topic_configs import LONG_MAX, TOPIC_SETTINGS, Layers, TopicConfig, describe_setting

INT_MAX = 2**31 - 1
DOUBLE_MAX = 1.7976931348623157e308


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The effective configuration of a broker as typed values. Names are Kafka's, with underscores for dots."""

    auto_create_topics_enable: bool = boolean(
        True, "Create a topic automatically when a client requests metadata for a topic that does not exist."
    )
    auto_leader_rebalance_enable: bool = boolean(
        True, "Elect the preferred leader (the first replica) of a partition again when it is back in sync."
    )
    connections_max_idle_ms: int = long(
        600_000,
        "Close a connection after it has been idle for this many milliseconds; -1 for never.",
        check=at_least(-1),
    )
    default_replication_factor: int = integer(
        3,
        "The replication factor of a topic that is created without one, limited by the number of brokers.",
        check=at_least(1),
    )
    delete_topic_enable: bool = boolean(True, "Allow clients to delete topics.")
    fetch_max_bytes: int = integer(57_671_680, "The maximum number of bytes in a fetch response.", check=at_least(1024))
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "The maximum number of bytes per second that this broker fetches for replicas that are out of sync.",
        check=at_least(1),
    )
    group_consumer_assignors: tuple[str, ...] = string_list(
        ("uniform", "range"),
        "The server-side assignors that members of consumer groups may choose. The first one is the default.",
        check=lambda value: each_of("uniform", "range")(value) if value else "List must not be empty",
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        15_000, "The maximum heartbeat interval of the members of consumer groups.", check=at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = integer(
        60_000, "The maximum session timeout of the members of consumer groups.", check=at_least(1)
    )
    group_consumer_max_size: int = integer(
        INT_MAX, "The maximum number of members in a consumer group.", check=at_least(1)
    )
    group_consumer_migration_policy: str = text(
        "bidirectional",
        "How a group that has members may change its protocol. upgrade: a classic group becomes a consumer group when "
        "a member that uses the consumer protocol joins. downgrade: a consumer group becomes a classic group when only "
        "members that use the classic protocol are left. bidirectional: both. disabled: neither. "
        "An empty group always takes the protocol of the next member that joins.",
        check=one_of_any_case("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        5000, "The minimum heartbeat interval of the members of consumer groups.", check=at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = integer(
        45_000, "The minimum session timeout of the members of consumer groups.", check=at_least(1)
    )
    group_initial_rebalance_delay_ms: int = integer(
        0,
        "How long the coordinator waits for more members to join an empty group before the first rebalance. Kafka's "
        "default is 3000 ms. With 0 the first consumer starts at once, but each further member causes a rebalance.",
        check=at_least(0),
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, "The maximum session timeout of the members of classic groups.", check=at_least(1)
    )
    group_max_size: int = integer(INT_MAX, "The maximum number of members in a classic group.", check=at_least(1))
    group_min_session_timeout_ms: int = integer(
        6000, "The minimum session timeout of the members of classic groups.", check=at_least(1)
    )
    leader_imbalance_check_interval_seconds: int = long(
        30, "How often the controller checks whether to elect preferred leaders.", check=at_least(1)
    )
    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "The maximum number of bytes per second that this broker sends to replicas that are out of sync, in total.",
        check=at_least(1),
    )
    log_cleaner_backoff_ms: int = long(
        15_000, "How long the log cleaner sleeps when no log needs compaction.", check=at_least(1)
    )
    log_cleaner_dedupe_buffer_size: int = long(
        134_217_728,
        "The memory that the log cleaner uses to deduplicate keys, about 36 bytes per key.",
        check=at_least(1_048_576),
    )
    log_cleaner_enable: bool = boolean(True, "Run the log cleaner, which compacts topics with cleanup.policy=compact.")
    log_cleaner_io_max_bytes_per_second: float = double(
        DOUBLE_MAX,
        "The maximum number of bytes per second that the log cleaner reads and writes.",
        check=at_least(1024),
    )
    log_retention_check_interval_ms: int = long(
        300_000, "How often the broker checks for log segments that are eligible for deletion.", check=at_least(1)
    )
    max_connections: int = integer(INT_MAX, "The maximum number of open connections.", check=at_least(1))
    max_connections_per_ip: int = integer(
        INT_MAX, "The maximum number of open connections from one IP address.", check=at_least(1)
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1000, "The maximum number of incremental fetch sessions that the broker maintains.", check=at_least(0)
    )
    num_partitions: int = integer(
        4, "The number of partitions of a topic that is created without a partition count.", check=at_least(1)
    )
    offset_metadata_max_bytes: int = integer(
        4096, "The maximum size of the metadata string of a committed offset.", check=at_least(0)
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, "How often the broker checks for expired committed offsets.", check=at_least(1)
    )
    offsets_retention_minutes: int = integer(
        10_080, "How long committed offsets are kept after their group has become empty.", check=at_least(1)
    )
    offsets_topic_num_partitions: int = integer(
        8,
        "The number of partitions of __consumer_offsets. It has no effect after that topic has been created: the "
        "partition count determines which coordinator a group belongs to.",
        check=at_least(1),
    )
    offsets_topic_replication_factor: int = integer(
        3,
        "The replication factor of __consumer_offsets, limited by the number of brokers when it is created.",
        check=at_least(1),
    )
    offsets_topic_segment_bytes: int = integer(
        104_857_600, "The segment size of __consumer_offsets.", check=at_least(1)
    )
    producer_id_expiration_ms: int = integer(
        86_400_000,
        "Forget an idempotent producer after it has been idle for this many milliseconds, measured by each replica.",
        check=at_least(1),
    )
    queued_max_request_bytes: int = long(
        134_217_728,
        "The maximum total size of the requests in flight. When it is reached, the broker stops reading from its "
        "sockets until requests have completed.",
        check=at_least(1),
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576, "The maximum number of bytes per partition in a follower fetch.", check=at_least(0)
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760, "The maximum number of bytes in a follower fetch.", check=at_least(0)
    )
    replica_fetch_wait_max_ms: int = integer(
        500, "The maximum time that a follower fetch waits at the leader for new records.", check=at_least(1)
    )
    replica_lag_time_max_ms: int = long(
        10_000,
        "Remove a follower from the in-sync replicas when it has not caught up with the leader for this many "
        "milliseconds.",
        check=at_least(1),
    )
    socket_request_max_bytes: int = integer(
        104_857_600,
        "The maximum size of a request. The broker closes a connection that sends a larger one.",
        check=at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000, "How often the broker aborts transactions that have timed out.", check=at_least(1)
    )
    transaction_max_timeout_ms: int = integer(
        900_000, "The maximum transaction timeout that a producer may request.", check=at_least(1)
    )
    transaction_state_log_num_partitions: int = integer(
        8,
        "The number of partitions of __transaction_state. It has no effect after that topic has been created: the "
        "partition count determines which coordinator a transactional id belongs to.",
        check=at_least(1),
    )
    transaction_state_log_replication_factor: int = integer(
        3,
        "The replication factor of __transaction_state, limited by the number of brokers when it is created.",
        check=at_least(1),
    )
    transaction_state_log_segment_bytes: int = integer(
        104_857_600, "The segment size of __transaction_state.", check=at_least(1)
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000,
        "Remove the state of a transactional id after it has been unused for this many milliseconds.",
        check=at_least(1),
    )
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    subscription_defaults: SubscriptionConfig = field(default_factory=SubscriptionConfig)
    without_effect: tuple[str, ...] = ()
    """Kafka configs that were given at startup and have no effect in Headrace."""
    static: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, static: Mapping[str, str], dynamic: Mapping[str, str] | None = None) -> BrokerConfig:
        """Build from static settings and the dynamic ones that override them; `InvalidConfig` lists every bad one."""
        dynamic = dict(dynamic or {})
        without_effect = tuple(sorted(WITHOUT_EFFECT & static.keys()))
        static = {name: value for name, value in static.items() if name not in WITHOUT_EFFECT}
        if replaced := [f"{name} cannot be set here: {advice}" for name in static if (advice := replacement_of(name))]:
            raise InvalidConfig("; ".join(replaced))
        values = {
            **parse_all(BROKER_SETTINGS, static, "broker"),
            **parse_all(BROKER_SETTINGS, dynamic, "broker"),
        }
        own: dict[str, Any] = {attribute_name(name): value for name, value in values.items() if name in _DECLARED}
        group: dict[str, Any] = {
            attribute_name(name): values[setting.name]
            for name, setting in _GROUP_DEFAULTS.items()
            if setting.name in values
        }
        topic_defaults = _topic_defaults({name: values[name] for name in layer} for layer in (static, dynamic))
        subscription_defaults = SubscriptionConfig(**group)
        config = cls(
            **own,
            topic_defaults=topic_defaults,
            subscription_defaults=subscription_defaults,
            without_effect=without_effect,
            static=static,
            dynamic=dynamic,
        )
        if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
            raise InvalidConfig("group.min.session.timeout.ms is larger than group.max.session.timeout.ms")
        config.check_consumer_timing(
            "group.consumer.",
            subscription_defaults.consumer_session_timeout_ms,
            subscription_defaults.consumer_heartbeat_interval_ms,
        )
        if config.queued_max_request_bytes < config.socket_request_max_bytes:
            raise InvalidConfig(
                "queued.max.request.bytes is smaller than socket.request.max.bytes: a request of the maximum size "
                "would wait forever; raise queued.max.request.bytes or lower socket.request.max.bytes"
            )
        return config

    @property
    def layers(self) -> Layers:
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static),
        )

    def altered(self, changes: Iterable[ConfigChange]) -> BrokerConfig:
        """Return the configuration after IncrementalAlterConfigs; the caller stores its `dynamic`."""
        changes = list(changes)
        fixed = sorted(change.name for change in changes if change.name in _OWN_SETTINGS.keys() - _DYNAMIC)
        if fixed:
            raise InvalidRequest(f"Cannot update these configs dynamically: {', '.join(fixed)}; restart with --set")
        idle = sorted(change.name for change in changes if change.name in WITHOUT_EFFECT)
        if idle:
            raise InvalidRequest(f"These configs have no effect in Headrace: {', '.join(idle)}")
        dynamic = alter(BROKER_SETTINGS, self.dynamic, changes, inherited=self._text, kind="broker")
        return self.from_settings(self.static, dynamic)

    def describe(self) -> list[ConfigEntry]:
        """List every broker setting, sorted by name."""
        entries = [
            describe_setting(setting, shown_as, [], self.layers)
            for setting in (*_OWN_SETTINGS.values(), *TOPIC_SETTINGS.values())
            for shown_as in setting.broker_names
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def check_consumer_timing(self, prefix: str, session_timeout_ms: int, heartbeat_interval_ms: int) -> None:
        """Raise unless a consumer group may use these timings. `prefix` is that of the config names in the error."""
        given = {"session.timeout.ms": session_timeout_ms, "heartbeat.interval.ms": heartbeat_interval_ms}
        for name, value in given.items():
            low, high = (getattr(self, attribute_name(f"group.consumer.{limit}.{name}")) for limit in ("min", "max"))
            if not low <= value <= high:
                raise InvalidConfig(
                    f"{prefix}{name}={value} is not between group.consumer.min.{name}={low} and "
                    f"group.consumer.max.{name}={high}"
                )
        if heartbeat_interval_ms >= session_timeout_ms:
            raise InvalidConfig(f"{prefix}heartbeat.interval.ms is not smaller than {prefix}session.timeout.ms")

    def _text(self, name: str) -> str:
        return next(entry.value for entry in self.describe() if entry.name == name)


def flatten(table: Mapping[str, object]) -> dict[str, str]:
    """Convert a TOML table to settings: join nested names by dots and values to text."""
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{rest}": text for rest, text in flatten(value).items()})
        elif isinstance(value, list):
            flat[name] = ",".join(str(word) for word in value)
        elif isinstance(value, bool | int | float | str):
            flat[name] = value_text(value)
        else:
            raise InvalidConfig(f"Invalid value {value} for configuration {name}: a number, text or list is expected")
    return flat


def _topic_defaults(layers: Iterable[Mapping[str, Value]]) -> TopicConfig:
    """Derive topic defaults from broker settings, weakest layer first; within a layer the finest unit wins."""
    defaults: dict[str, Any] = {}
    for layer in layers:
        for setting in TOPIC_SETTINGS.values():
            given = [name for name in setting.broker_names if name.name in layer]
            if given:
                defaults[attribute_name(setting.name)] = given[0].to_topic(layer[given[0].name])
    return TopicConfig(**defaults)


def _broker_setting(setting: Setting, name: BrokerConfigName) -> Setting:
    """The broker setting that is the default of a topic setting: the same check, possibly in another unit."""
    check = setting.check
    return replace(
        setting,
        name=name.name,
        type=setting.type if name.factor == 1 else ConfigType.INT,
        default=name.from_topic(setting.default),
        check=(lambda value: check(name.to_topic(value))) if check else None,
    )


_DYNAMIC = {  # read on each use, so that a change takes effect at once
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "max.connections",
    "max.connections.per.ip",
}
_GROUP_DEFAULTS = {
    name: replace(setting, name=setting.broker_names[0].name)
    for name, setting in SUBSCRIPTION_SETTINGS.items()
    if setting.broker_names
}
"""The broker settings that are the defaults of group configs, by the names of the latter."""
_DECLARED = settings_of(BrokerConfig)
_OWN_SETTINGS: dict[str, Setting] = {
    setting.name: replace(
        setting, broker_names=(BrokerConfigName(setting.name),), read_only=setting.name not in _DYNAMIC
    )
    for setting in (*_DECLARED.values(), *_GROUP_DEFAULTS.values())
}
BROKER_SETTINGS: dict[str, Setting] = {
    **_OWN_SETTINGS,
    **{
        name.name: _broker_setting(setting, name)
        for setting in TOPIC_SETTINGS.values()
        for name in setting.broker_names
    },
}
