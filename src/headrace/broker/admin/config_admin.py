"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: topics, the broker, groups and
subscriptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headrace.broker.cluster.membership import BrokerIdentity
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.broker_configs import BrokerConfig
from headrace.model.configs import AlterOperation, ConfigChange, ConfigEntry
from headrace.model.errors import InvalidConfig, InvalidRequest, UnsupportedVersion
from headrace.model.names import check_group_id, check_topic_name
from headrace.model.subscription_configs import (
    GROUP_RESOURCE,
    SUBSCRIPTION_RESOURCE,
    parse_subscription_resource_name,
    subscription_resource_name,
)
from headrace.model.topic_configs import TopicConfig, alter_topic, describe_topic
from headrace.registry.configs import store_broker_configs
from headrace.registry.interface import Registry
from headrace.wire.messages.configs import (
    CLIENT_METRICS,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPIC = 2
_BROKER = 4
_BROKER_LOGGER = 8
_GROUP, _SUBSCRIPTION = GROUP_RESOURCE, SUBSCRIPTION_RESOURCE
_LISTED = (_TOPIC, _BROKER, _BROKER_LOGGER, CLIENT_METRICS, _GROUP)
_CONFIG_TYPES_SINCE = 1


class ConfigAdminRequests:
    def __init__(
        self,
        catalogue: Catalogue,
        groups: GroupConfigs,
        subscriptions: SubscriptionConfigs,
        identity: BrokerIdentity,
        registry: Registry,
    ) -> None:
        self._catalogue = catalogue
        self._groups = groups
        self._subscriptions = subscriptions
        self._identity = identity
        self._registry = registry
        self._changing = asyncio.Lock()

    async def describe(self, request: DescribeConfigsRequest, _context: RequestContext) -> DescribeConfigsResponse:
        response = DescribeConfigsResponse()
        for requested in request.resources:
            result = DescribeConfigsResult(resource_type=requested.resource_type, resource_name=requested.resource_name)
            with ReportErrors(result):
                entries = self._entries(requested.resource_type, requested.resource_name)
                wanted = set(requested.configuration_keys or ())
                result.configs = [
                    _describe_entry(entry, request) for entry in entries if not wanted or entry.name in wanted
                ]
            response.results.append(result)
        return response

    async def list_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """List the resources that have configs; loggers and client metrics are not supported."""
        wanted = (request.resource_types or _LISTED) if context.version >= _CONFIG_TYPES_SINCE else (CLIENT_METRICS,)
        if not set(wanted) <= {*_LISTED, _SUBSCRIPTION}:
            raise UnsupportedVersion
        names: dict[int, Iterable[str]] = {
            _TOPIC: (topic.name for topic in self._catalogue),
            _BROKER: (str(node_id) for node_id in sorted(self._catalogue.nodes)),
            _GROUP: self._groups.configured(),
            _SUBSCRIPTION: (subscription_resource_name(*one) for one in self._subscriptions.listed()),
        }
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=kind)
                for kind in sorted(names.keys() & set(wanted))
                for name in names[kind]
            ]
        )

    async def alter(self, request: AlterConfigsRequest, _context: RequestContext) -> AlterConfigsResponse:
        """Replace all overrides of a resource by those in the request."""
        response = AlterConfigsResponse()
        await self._alter_each(request, response.responses, self._replace)
        return response

    async def alter_incrementally(
        self, request: IncrementalAlterConfigsRequest, _context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        times_named = Counter((requested.resource_type, requested.resource_name) for requested in request.resources)

        async def change(requested: Any, *, dry_run: bool) -> None:
            if times_named[requested.resource_type, requested.resource_name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            await self._change(requested, dry_run=dry_run)

        response = IncrementalAlterConfigsResponse()
        await self._alter_each(request, response.responses, change)
        return response

    async def _alter_each(
        self, request: Any, results: list[AlterConfigsResourceResponse], alter: Callable[..., Awaitable[None]]
    ) -> None:
        for requested in request.resources:
            result = AlterConfigsResourceResponse(
                resource_type=requested.resource_type, resource_name=requested.resource_name
            )
            with ReportErrors(result):
                await alter(requested, dry_run=request.validate_only)
            results.append(result)

    def _entries(self, resource_type: int, name: str) -> list[ConfigEntry]:
        if resource_type == _TOPIC:
            topic = self._catalogue.topic(check_topic_name(name))
            return describe_topic(topic.record.configs, self._catalogue.config.layers)
        if resource_type == _GROUP:
            return self._groups.describe(check_group_id(name))
        if resource_type == _SUBSCRIPTION:
            return self._subscriptions.describe(*_parse_subscription_resource(name))
        self._check_broker(resource_type, name)
        return self._catalogue.config.describe()

    def _check_broker(self, resource_type: int, name: str) -> None:
        """Raise unless the resource is this broker. An empty name means the defaults of all brokers."""
        if resource_type != _BROKER:
            raise InvalidRequest(
                f"resource type {resource_type} is not supported; use topic (2), broker (4), group (32) or "
                "subscription (100)"
            )
        if name not in ("", str(self._identity.node_id)):
            raise InvalidRequest(
                f"this is broker {self._identity.node_id}, not {name}; send the request to that broker"
            )

    async def _replace(self, requested: Any, *, dry_run: bool) -> None:
        given = {config.name: config.value for config in requested.configs}
        if len(given) != len(requested.configs):
            raise InvalidRequest("Error due to duplicate config keys")
        name = requested.resource_name
        if requested.resource_type == _TOPIC:
            TopicConfig.build(given, self._catalogue.config.topic_defaults)
            overrides = {name: value for name, value in given.items() if value is not None}
            await self._catalogue.change_configs(check_topic_name(name), lambda _: overrides, dry_run=dry_run)
        elif requested.resource_type == _GROUP:
            await self._groups.replace(check_group_id(name), given, dry_run=dry_run)
        elif requested.resource_type == _SUBSCRIPTION:
            await self._subscriptions.replace(*_parse_subscription_resource(name), given, dry_run=dry_run)
        else:
            self._check_broker(requested.resource_type, name)
            new = [ConfigChange(name, AlterOperation.SET, value) for name, value in given.items()]

            def replaced(before: BrokerConfig) -> BrokerConfig:
                gone = [ConfigChange(name, AlterOperation.DELETE) for name in before.dynamic if name not in given]
                return before.altered([*gone, *new])

            await self._change_broker(replaced, dry_run=dry_run)

    async def _change(self, requested: Any, *, dry_run: bool) -> None:
        changes = [
            ConfigChange(config.name, _parse_alter_operation(config), config.value) for config in requested.configs
        ]
        name = requested.resource_name
        if requested.resource_type == _TOPIC:
            defaults = self._catalogue.config.topic_defaults
            await self._catalogue.change_configs(
                check_topic_name(name), lambda overrides: alter_topic(overrides, changes, defaults), dry_run=dry_run
            )
        elif requested.resource_type == _GROUP:
            await self._groups.alter(check_group_id(name), changes, dry_run=dry_run)
        elif requested.resource_type == _SUBSCRIPTION:
            await self._subscriptions.alter(*_parse_subscription_resource(name), changes, dry_run=dry_run)
        else:
            self._check_broker(requested.resource_type, name)
            await self._change_broker(lambda before: before.altered(changes), dry_run=dry_run)

    async def _change_broker(self, change: Callable[[BrokerConfig], BrokerConfig], *, dry_run: bool) -> None:
        async with self._changing:
            config = change(self._catalogue.config)
            self._catalogue.check_defaults(config)
            if dry_run:
                return
            await store_broker_configs(self._registry, config.dynamic)
            self._catalogue.reconfigure(config)


def _parse_subscription_resource(resource_name: str) -> tuple[str, str]:
    topic, name = parse_subscription_resource_name(resource_name)
    return check_topic_name(topic), check_group_id(name)


def _parse_alter_operation(config: Any) -> AlterOperation:
    try:
        return AlterOperation(config.config_operation)
    except ValueError:
        raise InvalidConfig(f"Unknown operation {config.config_operation} for {config.name}") from None


def _describe_entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=None if entry.is_secret else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_secret,
        synonyms=[
            DescribeConfigsSynonym(
                name=synonym.name, value=None if entry.is_secret else synonym.value, source=synonym.source
            )
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )
