"""Describe and change the configuration of a resource, such as a topic, a subscription or a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.model.subscription_configs import SUBSCRIPTION_RESOURCE, subscription_resource_name
from headrace.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

Resource = tuple[int, str]
"""Type and name."""


def subscription_resource(topic: str, subscription: str) -> Resource:
    return SUBSCRIPTION_RESOURCE, subscription_resource_name(topic, subscription)


_SET, _DELETE = 0, 1


async def describe_configs(
    cluster: Cluster, resource: Resource, names: Sequence[str] | None = None
) -> Sequence[DescribeConfigsResourceResult]:
    """The named settings of a resource, or all of them."""
    requested = DescribeConfigsResource(*resource, configuration_keys=None if names is None else [*names])

    async def attempt() -> Sequence[DescribeConfigsResourceResult]:
        response: DescribeConfigsResponse = await cluster.call(DescribeConfigsRequest(resources=[requested]))
        result = only_result(response.results)
        raise_for_code(result.error_code, result.error_message)
        return result.configs

    return await cluster.call_with_retries(attempt)


async def alter_configs(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Change single settings; None resets one to its default."""
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in changes.items()
    ]
    altered = IncrementalAlterConfigsResource(*resource, configs)
    await _send(cluster, IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only))


async def replace_configs(cluster: Cluster, resource: Resource, configs: Mapping[str, str]) -> None:
    """Set these settings and reset all others to their defaults."""
    given = [AlterableConfig(name=name, value=value) for name, value in configs.items()]
    await _send(cluster, AlterConfigsRequest(resources=[AlterConfigsResource(*resource, configs=given)]))


async def configured_resources(cluster: Cluster, resource_type: int) -> frozenset[str]:
    """The names of all resources of this type that have a configuration."""

    async def attempt() -> frozenset[str]:
        response: ListConfigResourcesResponse = await cluster.call(
            ListConfigResourcesRequest(resource_types=[resource_type])
        )
        raise_for_code(response.error_code, None)
        return frozenset(one.resource_name for one in response.config_resources)

    return await cluster.call_with_retries(attempt)


async def _send(cluster: Cluster, request: Any) -> None:
    async def attempt() -> None:
        response = await cluster.call(request)
        result = only_result(response.responses)
        raise_for_code(result.error_code, result.error_message)

    await cluster.call_with_retries(attempt)
