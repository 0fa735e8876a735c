"""The configuration of subscriptions (Kafka's share groups) and of consumer groups.

`share.*` are Kafka's share group configs, with two different defaults: the number of records in flight is unlimited
unless it is configured, and no dead letter is dropped. `headrace.*` are Headrace's own. `consumer.*` apply to consumer
groups. A subscription's own configuration is identified by topic and name; a group's configuration applies to the
subscriptions of that name that have none of their own.

The defaults below are those of groups, with Kafka's retry behaviour. `RETRY_DEFAULTS` replaces some of them for
subscriptions that have their own configuration (decision 032).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.model.configs import (
    DAY_MS,
    HOUR_MS,
    BrokerConfigName,
    Setting,
    Value,
    at_least,
    attribute_name,
    between,
    boolean,
    double,
    integer,
    long,
    one_of,
    parse_all,
    secret,
    settings_of,
    string_list,
    text,
)
from headrace.model.errors import InvalidConfig, InvalidRequest

CLASSES = 10
"""Priorities 0 (lowest) to 9."""


def _start(value: str) -> str | None:
    if value in {"earliest", "latest"}:
        return None
    prefix, _, duration = value.partition(":")
    if prefix == "by_duration" and duration.startswith("P"):
        from headrace.model.durations import InvalidDuration, parse_duration  # rarely used: keeps startup fast

        with suppress(InvalidDuration):
            parse_duration(duration)
            return None
    return "must be earliest, latest or by_duration:<ISO 8601 duration>"


def _slacks(value: Sequence[str]) -> str | None:
    if not value:
        return None
    if len(value) != CLASSES or not all(one.isdigit() for one in value):
        return f"must be empty or a list of {CLASSES} integers (milliseconds), one per priority, beginning with 0"
    slacks = [int(one) for one in value]
    return None if slacks == sorted(slacks, reverse=True) else "a higher priority must not have more slack than a lower"


_HOST_NAME = re.compile(r"(?:(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.)*(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.?")
_HOST_LENGTH_MAX = 253


def _is_ipv6(host: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _push_url(value: str) -> str | None:
    if not value:
        return None
    from urllib.parse import urlsplit  # few subscriptions push: keeps startup fast

    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not host:
        return "must be http://HOST/... or https://HOST/..."
    if port == 0:
        return "must have a port from 1 to 65535"
    if not (_is_ipv6(host) if "[" in parts.netloc else _HOST_NAME.fullmatch(host) and len(host) <= _HOST_LENGTH_MAX):
        return "the host must be a DNS name, an IPv4 address or an IPv6 address in brackets"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user or password; receivers authenticate requests by their signature"
    if not value.isascii() or not value.isprintable() or set(value) & set(' "<>\\^`{|}'):
        return "contains characters that must be percent-encoded (%XX)"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionConfig:
    consumer_heartbeat_interval_ms: int = integer(
        5000,
        "The heartbeat interval of the members of a consumer group.",
        check=at_least(1),
        broker_names=(BrokerConfigName("group.consumer.heartbeat.interval.ms"),),
    )
    consumer_session_timeout_ms: int = integer(
        45_000,
        "Remove a member of a consumer group that has sent no heartbeat for this many milliseconds.",
        check=at_least(1),
        broker_names=(BrokerConfigName("group.consumer.session.timeout.ms"),),
    )
    share_auto_offset_reset: str = text(
        "latest",
        "Where a subscription that was not created explicitly begins: earliest, latest or by_duration:<ISO 8601>.",
        check=_start,
    )
    share_delivery_count_limit: int = integer(
        5,
        "The maximum number of delivery attempts. A message that fails the last one becomes a dead letter.",
        check=between(1, 1000),
        broker_names=(BrokerConfigName("group.share.delivery.count.limit"),),
    )
    share_heartbeat_interval_ms: int = integer(
        5000,
        "The heartbeat interval of the members of a share group.",
        check=at_least(100),
        broker_names=(BrokerConfigName("group.share.heartbeat.interval.ms"),),
    )
    share_isolation_level: str = text(
        "read_uncommitted",
        "read_uncommitted delivers all messages. read_committed delivers messages of transactions only after they "
        "have been committed.",
        check=one_of("read_uncommitted", "read_committed"),
    )
    share_partition_max_record_locks: int = integer(
        0,
        "The maximum number of messages of a partition that are leased at the same time. 0: no limit. Kafka's default "
        "is 2000.",
        check=at_least(0),
        broker_names=(BrokerConfigName("group.share.partition.max.record.locks"),),
    )
    share_record_lock_duration_ms: int = integer(
        30_000,
        "The visibility timeout: a lease that is not extended expires after this many milliseconds.",
        check=between(100, 12 * HOUR_MS),
        broker_names=(BrokerConfigName("group.share.record.lock.duration.ms"),),
    )
    share_renew_acknowledge_enable: bool = boolean(True, "Allow members to extend their leases.")
    share_session_timeout_ms: int = integer(
        45_000,
        "Remove a member of a share group that has sent no heartbeat for this many milliseconds, and release its "
        "leases.",
        check=at_least(100),
        broker_names=(BrokerConfigName("group.share.session.timeout.ms"),),
    )
    headrace_retry_backoff_ms: int = long(
        0, "The delay before the second delivery attempt of a message that failed.", check=between(0, 365 * DAY_MS)
    )
    headrace_retry_backoff_max_ms: int = long(
        15 * 60_000, "The maximum delay between two delivery attempts.", check=between(0, 365 * DAY_MS)
    )
    headrace_retry_backoff_multiplier: float = double(
        2.0, "The factor by which the delay grows with each failed delivery attempt.", check=between(1, 100)
    )
    headrace_retry_jitter: float = double(
        0.1,
        "The fraction of the delay that is random, so that messages that failed together are not retried together.",
        check=between(0, 1),
    )
    headrace_key_concurrency: int = integer(
        0,
        "The maximum number of messages in flight with the same key. 1 preserves the order per key. 0: no limit.",
        check=at_least(0),
    )
    headrace_priority_slack_ms: Sequence[str] = string_list(
        (),
        "The slack in milliseconds of each of the priorities 0 to 9. The message with the smallest arrival time plus "
        "slack is delivered first. Empty: ignore priorities.",
        check=_slacks,
    )
    headrace_filter: str = text(
        "", "Deliver only messages that match this expression; settle all others without delivery."
    )
    headrace_expiry_enable: bool = boolean(False, "Settle expired messages without delivery.")
    headrace_rate: int = integer(
        0, "The maximum number of messages delivered per second and partition. 0: no limit.", check=at_least(0)
    )
    headrace_dead_letters_enable: bool = boolean(
        True, "Write dead letters to <topic>.dlq. If false, they are settled and only counted."
    )
    headrace_push_url: str = text(
        "", "The URL to which messages are pushed by HTTP POST. Empty: no push.", check=_push_url
    )
    headrace_push_topics: Sequence[str] = string_list((), "The topics whose messages are pushed. Empty: all topics.")
    headrace_push_secret: str = secret("The secret with which the receiver verifies the signature of a pushed message.")
    headrace_push_concurrency: int = integer(
        8, "The maximum number of concurrent push requests per process.", check=between(1, 1000)
    )
    headrace_push_rate: int = integer(
        0, "The maximum number of push requests per second and process. 0: no limit.", check=at_least(0)
    )
    headrace_push_timeout_ms: int = integer(
        10_000, "Fail a push request that has no response after this many milliseconds.", check=between(100, 600_000)
    )

    @classmethod
    def build(cls, given: Mapping[str, str | None], defaults: SubscriptionConfig | None = None) -> SubscriptionConfig:
        """Apply overrides, given as text, to the broker's defaults; `InvalidConfig` lists every bad one."""
        values: dict[str, Any] = {
            attribute_name(name): value for name, value in parse_all(SUBSCRIPTION_SETTINGS, given, "group").items()
        }
        config = replace(defaults or cls(), **values)
        # A default that exceeds a configured maximum is no error: `backoff_ms` applies the maximum.
        is_configured = "headrace.retry.backoff.ms" in given
        if is_configured and config.headrace_retry_backoff_ms > config.headrace_retry_backoff_max_ms:
            raise InvalidConfig("headrace.retry.backoff.ms must not exceed headrace.retry.backoff.max.ms")
        return config

    @property
    def slacks_ms(self) -> tuple[int, ...]:
        """The slack of each priority; empty when priorities are ignored."""
        return tuple(int(one) for one in self.headrace_priority_slack_ms)

    @property
    def opens_messages(self) -> bool:
        """Whether delivery depends on the contents of messages, so that batches must be decoded."""
        return bool(
            self.headrace_key_concurrency
            or self.headrace_priority_slack_ms
            or self.headrace_filter
            or self.headrace_expiry_enable
        )


SUBSCRIPTION_SETTINGS: Mapping[str, Setting] = settings_of(SubscriptionConfig)
"""The settings of a group, with its defaults."""

RETRY_DEFAULTS: Mapping[str, Value] = {"headrace.retry.backoff.ms": 1000, "share.delivery.count.limit": 15}
"""The defaults of a subscription that has its own configuration: with the other defaults of the back-off, a message is
retried for more than an hour before it becomes a dead letter. Kafka's consumers expect that a released message is
available at once, so a group has no back-off by default, and Kafka's limit."""

OWN_SUBSCRIPTION_SETTINGS: Mapping[str, Setting] = {
    name: msgspec.structs.replace(setting, default=RETRY_DEFAULTS.get(name, setting.default))
    for name, setting in SUBSCRIPTION_SETTINGS.items()
}
"""The settings of a subscription that has its own configuration, with its defaults."""

GROUP_ONLY = frozenset(
    {
        "headrace.push.topics",
        "share.heartbeat.interval.ms",
        "share.session.timeout.ms",
        *(name for name in SUBSCRIPTION_SETTINGS if name.startswith("consumer.")),
    }
)
"""Settings that apply to a group as a whole; a single subscription cannot have them."""

GROUP_RESOURCE = 32
SUBSCRIPTION_RESOURCE = 100
"""Resource types of DescribeConfigs and AlterConfigs; the second is Headrace's own."""


def subscription_resource_name(topic: str, name: str) -> str:
    return f"{topic}/{name}"


def parse_subscription_resource_name(text: str) -> tuple[str, str]:
    """Split at the first slash (topic names have none) into the topic and the subscription."""
    topic, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequest(f"{text!r} is not the name of a subscription resource; write TOPIC/SUBSCRIPTION")
    return topic, name
