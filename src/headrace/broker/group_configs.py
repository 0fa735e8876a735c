"""How groups are configured, as every broker sees it: the registry is the truth, its mirror is asked.

What was changed here is in force here when the call returns; other brokers follow by their mirrors. A configuration
that this broker cannot use is told in its log, and the one before stays in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from headrace.broker.catalogue import Catalogue
from headrace.machines.share_groups import ShareTiming
from headrace.model.configs import (
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    Synonym,
    alter,
    as_text,
)
from headrace.model.errors import HeadraceError
from headrace.model.subscription_configs import SUBSCRIPTION_SETTINGS, SubscriptionConfig
from headrace.registry.group_configs import change_group_configs, group_config_key, group_of_key
from headrace.registry.identity import decode_configs
from headrace.registry.interface import Entry, Registry

log = logging.getLogger(__name__)

_DEFAULTS = SubscriptionConfig()


class GroupConfigs:
    def __init__(self, catalogue: Catalogue, registry: Registry) -> None:
        self.on_changed: list[Callable[[str], None]] = []
        """The configuration of that group is another from now on."""
        self._catalogue = catalogue
        self._registry = registry
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._configs: dict[str, SubscriptionConfig] = {}
        catalogue.on_group_config.append(self._take)

    def of(self, group_id: str) -> SubscriptionConfig:
        """The same object until it changes."""
        return self._configs.get(group_id, _DEFAULTS)

    def pushed(self) -> list[tuple[str, SubscriptionConfig]]:
        """The groups whose messages are pushed, by name."""
        return [(group_id, config) for group_id, config in sorted(self._configs.items()) if config.headrace_push_url]

    def timing_of(self, group_id: str) -> ShareTiming:
        config = self.of(group_id)
        return ShareTiming(config.share_session_timeout_ms, config.share_heartbeat_interval_ms)

    def describe(self, group_id: str) -> list[ConfigEntry]:
        """Every setting with its value, where that comes from, and what stands behind it."""
        return list(_described(self._overrides.get(group_id, {})))

    async def replace(self, group_id: str, given: Mapping[str, str | None], *, dry_run: bool) -> None:
        """Set these, and no others."""
        _check(given)
        overrides = {name: value for name, value in given.items() if value is not None}
        if not dry_run:
            await self._change(group_id, lambda _: overrides)

    async def alter(self, group_id: str, changes: Iterable[ConfigChange], *, dry_run: bool) -> None:
        changes = tuple(changes)

        def altered(overrides: Mapping[str, str]) -> Mapping[str, str]:
            after = alter(SUBSCRIPTION_SETTINGS, overrides, changes, inherited=_default, kind="group")
            _check(after)
            return after

        altered(self._overrides.get(group_id, {}))
        if not dry_run:
            await self._change(group_id, altered)

    async def _change(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        await change_group_configs(self._registry, group_id, change)
        await self._catalogue.mirror.read([group_config_key(group_id)])

    def _take(self, key: str, entry: Entry | None) -> None:
        group_id = group_of_key(key)
        try:
            overrides = decode_configs(entry)
            config = SubscriptionConfig.build(overrides)
        except HeadraceError as error:
            log.error("the configs of group %s cannot be used: %s", group_id, error)
            return
        if entry is None:
            self._overrides.pop(group_id, None)
            self._configs.pop(group_id, None)
        else:
            self._overrides[group_id], self._configs[group_id] = overrides, config
        for told in self.on_changed:
            told(group_id)


def _check(given: Mapping[str, str | None]) -> None:
    """Raise what is wrong with these, filters included."""
    config = SubscriptionConfig.build(given)
    if config.headrace_filter:
        from headrace.machines.filters import compile_filter  # no start needs it

        compile_filter(config.headrace_filter)


def _described(overrides: Mapping[str, str]) -> Iterable[ConfigEntry]:
    for name, setting in SUBSCRIPTION_SETTINGS.items():
        synonyms = [Synonym(name, as_text(setting.default), ConfigSource.DEFAULT_CONFIG)]
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG))
        first = synonyms[0]
        yield ConfigEntry(
            name, first.value, first.source, setting.type, setting.read_only, setting.doc, tuple(synonyms)
        )


def _default(name: str) -> str:
    return as_text(SUBSCRIPTION_SETTINGS[name].default)
