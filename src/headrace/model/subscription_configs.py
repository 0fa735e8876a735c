"""The configuration of a group. Most of it is that of a subscription, which Kafka calls a share group: its names, and
those that only we have. `consumer.*` is for consumer groups of the newer protocol.

Kafka's names (`share.*`) mean what they mean there, with two defaults of our own: there is no limit of records in
flight unless one is set, and no dead letter is dropped. A subscription's own configuration belongs to its topic and its
name; a group's configuration holds for subscriptions that have none of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.configs import (
    BrokerName,
    Setting,
    at_least,
    attribute,
    between,
    boolean,
    double,
    integer,
    long,
    one_of,
    parse_all,
    secret,
    settings_of,
    text,
    words,
)
from headrace.model.errors import InvalidConfig, InvalidRequest

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CLASSES = 10
"""Priorities 0 (lowest) to 9."""


def _start(value: str) -> str | None:
    if value in {"earliest", "latest"}:
        return None
    prefix, _, duration = value.partition(":")
    if prefix == "by_duration" and duration.startswith("P"):
        from headrace.model.durations import InvalidDuration, parse_duration  # rarely used: no start needs it

        with suppress(InvalidDuration):
            parse_duration(duration)
            return None
    return "must be earliest, latest or by_duration:<ISO 8601 duration>"


def _slacks(value: Sequence[str]) -> str | None:
    if not value:
        return None
    if len(value) != CLASSES or not all(one.isdigit() for one in value):
        return f"must be empty or {CLASSES} whole numbers of milliseconds, for priority 0 first"
    slacks = [int(one) for one in value]
    return None if slacks == sorted(slacks, reverse=True) else "a higher priority must not have more slack"


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
    from urllib.parse import urlsplit  # few subscriptions push, and no start needs it for the others

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
        return "must name its host by a DNS name, an IPv4 address or an IPv6 address in brackets"
    if parts.username is not None or parts.password is not None:
        return "must have no user and no password in it; the receiver knows us by the signature"
    if not value.isascii() or not value.isprintable() or set(value) & set(' "<>\\^`{|}'):
        return "has characters that must be written as %XX"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionConfig:
    consumer_heartbeat_interval_ms: int = integer(
        5000,
        "How often members of a consumer group of the newer protocol report.",
        check=at_least(1),
        broker_names=(BrokerName("group.consumer.heartbeat.interval.ms"),),
    )
    consumer_session_timeout_ms: int = integer(
        45_000,
        "After so long without a report a member of such a group is out.",
        check=at_least(1),
        broker_names=(BrokerName("group.consumer.session.timeout.ms"),),
    )
    share_auto_offset_reset: str = text(
        "latest", "Where a subscription begins that is not created explicitly.", check=_start
    )
    share_delivery_count_limit: int = integer(
        5,
        "How often a message is delivered before it becomes a dead letter.",
        check=between(1, 1000),
        broker_names=(BrokerName("group.share.delivery.count.limit"),),
    )
    share_heartbeat_interval_ms: int = integer(
        5000,
        "How often members report.",
        check=at_least(100),
        broker_names=(BrokerName("group.share.heartbeat.interval.ms"),),
    )
    share_isolation_level: str = text(
        "read_uncommitted",
        "Whether messages of transactions that are open or aborted are delivered.",
        check=one_of("read_uncommitted", "read_committed"),
    )
    share_partition_max_record_locks: int = integer(
        0,
        "How many messages of a partition may be leased at a time; 0 is no limit.",
        check=at_least(0),
        broker_names=(BrokerName("group.share.partition.max.record.locks"),),
    )
    share_record_lock_duration_ms: int = integer(
        30_000,
        "How long a lease lasts that is not extended.",
        check=between(100, 12 * HOUR_MS),
        broker_names=(BrokerName("group.share.record.lock.duration.ms"),),
    )
    share_renew_acknowledge_enable: bool = boolean(True, "Whether a member may extend its leases.")
    share_session_timeout_ms: int = integer(
        45_000,
        "After so long without a report a member is gone, and what it leased comes back.",
        check=at_least(100),
        broker_names=(BrokerName("group.share.session.timeout.ms"),),
    )
    headrace_retry_backoff_ms: int = long(
        0, "How long a message that failed waits for its second delivery.", check=between(0, 365 * DAY_MS)
    )
    headrace_retry_backoff_max_ms: int = long(
        15 * 60_000, "The longest such wait, however often it failed.", check=between(0, 365 * DAY_MS)
    )
    headrace_retry_backoff_multiplier: float = double(
        2.0, "By how much the wait grows with each failure.", check=between(1, 100)
    )
    headrace_retry_jitter: float = double(
        0.1, "Which part of the wait is up to chance, so that failures do not come back together.", check=between(0, 1)
    )
    headrace_key_concurrency: int = integer(
        0, "How many messages of one key may be in flight; 1 keeps the order per key, 0 is no limit.", check=at_least(0)
    )
    headrace_priority_slack_ms: Sequence[str] = words(
        (),
        "For priorities 0 to 9: how much later than its arrival a message may be served than one without slack. "
        "Empty: priorities are not looked at.",
        check=_slacks,
    )
    headrace_filter: str = text("", "Messages that do not match this expression are settled unseen.")
    headrace_expiry_enable: bool = boolean(False, "Whether messages that have outlived their time are settled unseen.")
    headrace_rate: int = integer(
        0, "How many messages are delivered per second and partition; 0 is no limit.", check=at_least(0)
    )
    headrace_dead_letters_enable: bool = boolean(
        True, "Whether dead letters are kept in <topic>.dlq; otherwise they are settled and only counted."
    )
    headrace_push_url: str = text(
        "", "Where messages are sent to by POST; empty: they are not pushed.", check=_push_url
    )
    headrace_push_topics: Sequence[str] = words((), "Of which topics they are pushed; empty: of all of them.")
    headrace_push_secret: str = secret("What the receiver checks the signature of a pushed message with.")
    headrace_push_concurrency: int = integer(
        8, "How many messages each process sends at a time.", check=between(1, 1000)
    )
    headrace_push_rate: int = integer(
        0, "How many messages each process sends per second; 0 is no limit.", check=at_least(0)
    )
    headrace_push_timeout_ms: int = integer(
        10_000, "After so long without an answer the receiver has failed.", check=between(100, 600_000)
    )

    @classmethod
    def build(cls, given: Mapping[str, str | None], defaults: SubscriptionConfig | None = None) -> SubscriptionConfig:
        """From overrides as text, on top of a broker's defaults; everything that is wrong with them is told in one
        `InvalidConfig`."""
        values: dict[str, Any] = {
            attribute(name): value for name, value in parse_all(SUBSCRIPTION_SETTINGS, given, "group").items()
        }
        config = replace(defaults or cls(), **values)
        if config.headrace_retry_backoff_ms > config.headrace_retry_backoff_max_ms:
            raise InvalidConfig("headrace.retry.backoff.ms must not exceed headrace.retry.backoff.max.ms")
        return config

    @property
    def slacks_ms(self) -> tuple[int, ...]:
        """Per priority; empty when priorities are not looked at."""
        return tuple(int(one) for one in self.headrace_priority_slack_ms)

    @property
    def opens_messages(self) -> bool:
        """Whether delivery depends on what is in a message, so that batches must be opened."""
        return bool(
            self.headrace_key_concurrency
            or self.headrace_priority_slack_ms
            or self.headrace_filter
            or self.headrace_expiry_enable
        )


SUBSCRIPTION_SETTINGS: Mapping[str, Setting] = settings_of(SubscriptionConfig)

GROUP_ONLY = frozenset(
    {
        "headrace.push.topics",
        "share.heartbeat.interval.ms",
        "share.session.timeout.ms",
        *(name for name in SUBSCRIPTION_SETTINGS if name.startswith("consumer.")),
    }
)
"""Settings of a group as a whole, which a single subscription cannot have."""

GROUP_RESOURCE = 32
SUBSCRIPTION_RESOURCE = 100
"""Types of resource in DescribeConfigs and its relatives; the second is our own, beyond those of Kafka."""


def subscription_resource_name(topic: str, name: str) -> str:
    return f"{topic}/{name}"


def parse_subscription_resource_name(text: str) -> tuple[str, str]:
    """The topic, whose name has no slash, and the subscription."""
    topic, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequest(f"the configuration of a subscription is named TOPIC/SUBSCRIPTION, not {text!r}")
    return topic, name
