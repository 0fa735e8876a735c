"""The configuration of each subscription: its own record, or its group's configuration.

- A subscription has its own record, under (topic id, name), once it is created or configured through REST, the SDK or
  the command line. The record holds for that topic only.
- A subscription with its own record takes from its group only Kafka's `share.*` settings, for those that the record
  does not override. The group's `headrace.*` settings filter, drop and redirect messages, so they are never inherited
  through a name.
- A subscription without a record (made by a Kafka share consumer, or by a version without records) has its group's
  configuration. The first change to it copies that configuration into a record.
- The defaults of a record retry for more than an hour; those of a group are Kafka's, without back-off.
- Settings of the membership protocol belong to the group alone.

See decisions 027 and 032.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.configs import ConfigChange, ConfigEntry, alter, attribute_name, value_text
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.model.subscription_configs import (
    GROUP_ONLY,
    OWN_SUBSCRIPTION_SETTINGS,
    RETRY_DEFAULTS,
    SUBSCRIPTION_SETTINGS,
    SubscriptionConfig,
)
from headrace.registry.configs import (
    change_configs,
    decode_configs,
    parse_subscription_config_key,
    subscription_config_key,
)
from headrace.registry.interface import Registry, RegistryEntry

log = logging.getLogger(__name__)

_KAFKA_PREFIX, _PUSH_PREFIX = "share.", "headrace.push."

_Key = tuple[UUID, str]
_Overrides = Mapping[str, str]


class Push(NamedTuple):
    """`topics` are the topics whose messages are pushed; empty means all that have a subscription of this name. Without
    a URL in `config`, the messages of these topics are not pushed although the group has a webhook."""

    subscription: str
    topics: tuple[str, ...]
    config: SubscriptionConfig


class SubscriptionConfigs:
    def __init__(self, catalogue: Catalogue, groups: GroupConfigs, registry: Registry) -> None:
        self.on_changed: list[Callable[[str], None]] = []
        """Called with a name when the configuration of its subscriptions may have changed, in one topic or in all."""
        self._catalogue = catalogue
        self._groups = groups
        self._registry = registry
        self._overrides: dict[_Key, _Overrides] = {}
        self._configs: dict[_Key, SubscriptionConfig] = {}
        catalogue.on_subscription_config.append(self._update)
        catalogue.on_topic_deleted.append(self._forget_topic)
        groups.on_changed.append(self._on_group_changed)

    def of(self, topic_id: UUID, name: str) -> SubscriptionConfig:
        """Return the configuration: the same object until it changes."""
        own = self._configs.get((topic_id, name))
        return self._groups.of(name) if own is None else own

    def pushes(self) -> list[Push]:
        """Return all webhooks, sorted by subscription and topic."""
        own = {}
        for (topic_id, name), config in self._configs.items():
            topic = self._catalogue.find_by_id(topic_id)
            if topic is not None:
                own[name, topic.name] = config
        pushes = []
        pushed_everywhere = set()
        for name, config in self._groups.pushed():
            topics = tuple(topic for topic in config.headrace_push_topics if (name, topic) not in own)
            if topics or not config.headrace_push_topics:
                pushes.append(Push(name, topics, config))
            if not topics:
                pushed_everywhere.add(name)
        for (name, topic_name), config in own.items():
            if config.headrace_push_url or name in pushed_everywhere:
                pushes.append(Push(name, (topic_name,), config))
        return sorted(pushes, key=lambda push: push[:2])

    def listed(self) -> list[tuple[str, str]]:
        """Return topic and name of every subscription that has its own record."""
        topics = ((self._catalogue.find_by_id(topic_id), name) for topic_id, name in self._overrides)
        return sorted((topic.name, name) for topic, name in topics if topic is not None)

    def describe(self, topic: str, name: str) -> list[ConfigEntry]:
        own = self._overrides.get((self._catalogue.topic(topic).id, name))
        if own is None:
            return self._groups.describe(name)
        return self._groups.describe_overrides(self._effective(name, own), OWN_SUBSCRIPTION_SETTINGS)

    async def replace(self, topic: str, name: str, given: Mapping[str, str | None], *, dry_run: bool) -> None:
        """Replace all settings."""
        overrides = {key: value for key, value in given.items() if value is not None}
        self._check(given)
        if not dry_run:
            await self._change(self._catalogue.topic(topic).id, name, lambda _: overrides)

    async def alter(self, topic: str, name: str, changes: Iterable[ConfigChange], *, dry_run: bool) -> None:
        """Change single settings. Without changes, create an empty record if there is none."""
        changes = tuple(changes)
        topic_id = self._catalogue.topic(topic).id

        def altered(own: _Overrides | None) -> _Overrides:
            if not changes:
                return {} if own is None else own
            before = self._copy_of_group(topic, name) if own is None else own
            after = alter(SUBSCRIPTION_SETTINGS, before, changes, inherited=self._groups.default, kind="subscription")
            self._check(after)
            return after

        altered(self._overrides.get((topic_id, name)))
        if not dry_run:
            await self._change(topic_id, name, altered)

    async def remove(self, topic: str, name: str) -> None:
        """Delete the record before the subscription: a subscription created afterwards must not inherit it."""
        await self._change(self._catalogue.topic(topic).id, name, lambda _: None)

    async def _change(
        self, topic_id: UUID, name: str, change: Callable[[_Overrides | None], _Overrides | None]
    ) -> None:
        key = subscription_config_key(topic_id, name)
        await change_configs(self._registry, key, change)
        await self._catalogue.mirror.read([key])

    def _update(self, key: str, entry: RegistryEntry | None) -> None:
        topic_id, name = own_key = parse_subscription_config_key(key)
        if entry is None:
            self._overrides.pop(own_key, None)
            self._configs.pop(own_key, None)
        else:
            try:
                overrides = decode_configs(entry)
                config = self._groups.build_own(self._effective(name, overrides))
            except HeadraceError as error:
                log.error("invalid subscription configuration topic_id=%s name=%r error=%s", topic_id, name, error)
                return
            self._overrides[own_key], self._configs[own_key] = overrides, config
        self._notify(name)

    def _on_group_changed(self, name: str) -> None:
        for own_key, overrides in self._overrides.items():
            if own_key[1] == name:
                self._configs[own_key] = self._groups.build_own(self._effective(name, overrides))
        self._notify(name)

    def _forget_topic(self, topic: Topic) -> None:
        """Drop the records of a deleted topic at once; the controller removes them from the registry."""
        for own_key in [own_key for own_key in self._overrides if own_key[0] == topic.id]:
            del self._overrides[own_key], self._configs[own_key]
            self._notify(own_key[1])

    def _notify(self, name: str) -> None:
        for notify in self.on_changed:
            notify(name)

    def _effective(self, name: str, own: _Overrides) -> _Overrides:
        effective = {
            key: value
            for key, value in self._groups.overrides_of(name).items()
            if key.startswith(_KAFKA_PREFIX) and key not in GROUP_ONLY
        }
        return effective | {**own}

    def _copy_of_group(self, topic: str, name: str) -> _Overrides:
        """Return the settings of the group, including defaults that a record does not share: otherwise a change of one
        setting would also change how the members of the group retry."""
        group = self._groups.of(name)
        topics = group.headrace_push_topics
        is_pushed = not topics or topic in topics
        retry = {setting: value_text(getattr(group, attribute_name(setting))) for setting in RETRY_DEFAULTS}
        return retry | {
            key: value
            for key, value in self._groups.overrides_of(name).items()
            if key not in GROUP_ONLY and (is_pushed or not key.startswith(_PUSH_PREFIX))
        }

    def _check(self, given: Mapping[str, str | None]) -> None:
        for name in sorted(GROUP_ONLY & given.keys()):
            raise InvalidConfig(
                f"{name} is a group config, not a subscription config; set it with Kafka's tools (kafka-configs "
                "--entity-type groups)"
            )
        self._groups.check(given)
