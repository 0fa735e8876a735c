"""The configurations of groups, which are stored in the registry and read from its mirror.

A change through this broker applies here when the call returns; other brokers apply it with their mirrors. A broker
that cannot use a configuration logs that, and keeps the previous one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.consumer_group import ConsumerGroupConfig
from headrace.machines.groups.group_migration import MigrationPolicy
from headrace.machines.groups.group_state import GroupConfig
from headrace.machines.share_groups.share_group import ShareSessionConfig
from headrace.model.configs import (
    BrokerConfigName,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    Setting,
    Synonym,
    alter,
    attribute_name,
    value_text,
)
from headrace.model.errors import HeadraceError
from headrace.model.subscription_configs import RETRY_DEFAULTS, SUBSCRIPTION_SETTINGS, SubscriptionConfig
from headrace.model.topic_configs import describe_setting
from headrace.registry.configs import change_configs, decode_configs, group_config_key, group_of_key
from headrace.registry.interface import Registry, RegistryEntry

log = logging.getLogger(__name__)


class GroupConfigs:
    def __init__(self, catalogue: Catalogue, registry: Registry) -> None:
        self.on_changed: list[Callable[[str], None]] = []
        """Called with the id of a group whose configuration has changed."""
        broker = catalogue.config
        self.classic = GroupConfig(
            min_session_timeout_ms=broker.group_min_session_timeout_ms,
            max_session_timeout_ms=broker.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=broker.group_initial_rebalance_delay_ms,
            max_size=broker.group_max_size,
        )
        self.metadata_bytes_max = broker.offset_metadata_max_bytes
        self.migration_policy = MigrationPolicy(broker.group_consumer_migration_policy.lower())
        self._catalogue = catalogue
        self._defaults = broker.subscription_defaults
        self.subscription_defaults = replace(self._defaults, **self._retry_defaults())
        """The defaults of subscriptions that have their own configuration."""
        self._registry = registry
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._configs: dict[str, SubscriptionConfig] = {}
        catalogue.on_group_config.append(self._take)

    def of(self, group_id: str) -> SubscriptionConfig:
        """Return the configuration of the group: the same object until it changes."""
        return self._configs.get(group_id, self._defaults)

    def overrides_of(self, group_id: str) -> Mapping[str, str]:
        return self._overrides.get(group_id, {})

    def pushed(self) -> list[tuple[str, SubscriptionConfig]]:
        """Return the groups with push, sorted by name."""
        return [(group_id, config) for group_id, config in sorted(self._configs.items()) if config.headrace_push_url]

    def configured(self) -> list[str]:
        """Return the groups with any explicit setting, sorted by name."""
        return sorted(self._overrides)

    def timing_of(self, group_id: str) -> ShareSessionConfig:
        config = self.of(group_id)
        return ShareSessionConfig(config.share_session_timeout_ms, config.share_heartbeat_interval_ms)

    def consumer_config_of(self, group_id: str) -> ConsumerGroupConfig:
        config, broker = self.of(group_id), self._catalogue.config
        return ConsumerGroupConfig(
            session_timeout_ms=config.consumer_session_timeout_ms,
            heartbeat_interval_ms=config.consumer_heartbeat_interval_ms,
            max_size=broker.group_consumer_max_size,
            assignors=tuple(broker.group_consumer_assignors),
        )

    def describe(self, group_id: str) -> list[ConfigEntry]:
        """Return every setting with its value, its source and its synonyms."""
        return self.describe_overrides(self.overrides_of(group_id), SUBSCRIPTION_SETTINGS)

    def describe_overrides(self, overrides: Mapping[str, str], settings: Mapping[str, Setting]) -> list[ConfigEntry]:
        broker_layers = self._catalogue.config.layers
        entries = []
        for name, setting in settings.items():
            own = [Synonym(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG)] if name in overrides else []
            entries.append(describe_setting(setting, BrokerConfigName(name), own, broker_layers))
        return entries

    async def replace(self, group_id: str, given: Mapping[str, str | None], *, dry_run: bool) -> None:
        """Replace all explicit settings of the group with these."""
        self.check(given)
        overrides = {name: value for name, value in given.items() if value is not None}
        if not dry_run:
            await self._change(group_id, lambda _: overrides)

    async def alter(self, group_id: str, changes: Iterable[ConfigChange], *, dry_run: bool) -> None:
        changes = tuple(changes)

        def altered(overrides: Mapping[str, str]) -> Mapping[str, str]:
            after = alter(SUBSCRIPTION_SETTINGS, overrides, changes, inherited=self.default, kind="group")
            self.check(after)
            return after

        altered(self.overrides_of(group_id))
        if not dry_run:
            await self._change(group_id, altered)

    async def _change(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        key = group_config_key(group_id)
        await change_configs(self._registry, key, lambda before: change(before or {}) or None)
        await self._catalogue.mirror.read([key])

    def _take(self, key: str, entry: RegistryEntry | None) -> None:
        group_id = group_of_key(key)
        try:
            overrides = decode_configs(entry)
            config = self.build(overrides)
        except HeadraceError as error:
            log.error("invalid group configs group=%s error=%s", group_id, error)
            return
        if entry is None:
            self._overrides.pop(group_id, None)
            self._configs.pop(group_id, None)
        else:
            self._overrides[group_id], self._configs[group_id] = overrides, config
        for callback in self.on_changed:
            callback(group_id)

    def build(self, given: Mapping[str, str | None]) -> SubscriptionConfig:
        return SubscriptionConfig.build(given, self._defaults)

    def build_own(self, given: Mapping[str, str | None]) -> SubscriptionConfig:
        """Build the configuration of a subscription that has its own."""
        return SubscriptionConfig.build(given, self.subscription_defaults)

    def check(self, given: Mapping[str, str | None]) -> None:
        """Raise if these settings are invalid, also with respect to filters and this broker's limits."""
        config = self.build(given)
        self._catalogue.config.check_consumer_timing(
            "consumer.", config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms
        )
        if config.headrace_filter:
            from headrace.machines.queues.filters import compile_filter  # imported on first use: keeps startup fast

            compile_filter(config.headrace_filter)

    def default(self, name: str) -> str:
        return value_text(getattr(self._defaults, attribute_name(name)))

    def _retry_defaults(self) -> dict[str, Any]:
        """Return the attributes with other defaults in subscriptions. A broker config that is set explicitly applies
        to subscriptions as well."""
        configured = {name for _, layer in self._catalogue.config.layers for name in layer}
        return {
            attribute_name(name): value
            for name, value in RETRY_DEFAULTS.items()
            if configured.isdisjoint(one.name for one in SUBSCRIPTION_SETTINGS[name].broker_names)
        }
