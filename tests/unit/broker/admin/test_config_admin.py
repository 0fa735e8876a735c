"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the broker."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidRequest,
    RequestTimedOut,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from headrace.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from headrace.wire.messages.configs import IncrementalAlterableConfig as IncrementalConfig
from headrace.wire.messages.configs import IncrementalAlterConfigsResource as IncrementalResource

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
STATIC, DYNAMIC_BROKER, DYNAMIC_TOPIC, DEFAULT = 4, 2, 1, 5


async def describe(
    simulated_broker: SimulatedBroker,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    **options: bool,
) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = (await simulated_broker.send(DescribeConfigsRequest(resources=[resource], **options), version)).results
    return result


async def shown(simulated_broker: SimulatedBroker, kind: int, name: str, key: str) -> tuple[str, int]:
    """Value and source of one config."""
    (config,) = (await describe(simulated_broker, kind, name, [key])).configs
    return config.value, config.config_source


async def replace(
    simulated_broker: SimulatedBroker, kind: int, name: str, configs: dict[str, str | None], *, dry_run: bool = False
) -> Any:
    given = [AlterableConfig(name=key, value=value) for key, value in configs.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
    request = AlterConfigsRequest(resources=[resource], validate_only=dry_run)
    (result,) = (await simulated_broker.send(request, 2)).responses
    return result.error_code


async def change(
    simulated_broker: SimulatedBroker,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    dry_run: bool = False,
) -> int:
    given = [IncrementalConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = IncrementalResource(resource_type=kind, resource_name=name, configs=given)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
    (result,) = (await simulated_broker.send(request, 1)).responses
    return int(result.error_code)


async def listed(simulated_broker: SimulatedBroker, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    response = await simulated_broker.send(ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert response.error_code == 0
    return [(one.resource_type, one.resource_name) for one in response.config_resources]


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_config_is_described_with_its_source(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t", retention_ms="1000")
    result = await describe(simulated_broker, TOPIC, "t", version=version, include_synonyms=True)
    configs = {config.name: config for config in result.configs}
    assert len(configs) > 20
    own, inherited = configs["retention.ms"], configs["segment.bytes"]
    assert (own.value, own.config_source) == ("1000", DYNAMIC_TOPIC)
    assert (inherited.value, inherited.config_source) == ("1073741824", DEFAULT)
    assert [(synonym.name, synonym.source) for synonym in own.synonyms] == [
        ("retention.ms", DYNAMIC_TOPIC),
        ("log.retention.ms", DEFAULT),
    ]
    assert {config.name: config.value for config in (await describe(simulated_broker, BROKER, "1")).configs}[
        "num.partitions"
    ]


async def test_only_the_requested_configs_are_described(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    result = await describe(simulated_broker, TOPIC, "t", ["retention.ms", "no.such"], include_documentation=True)
    (config,) = result.configs
    assert config.name == "retention.ms"
    assert config.synonyms == []
    assert config.documentation


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "x", UnknownTopicOrPartition),
        (BROKER, "2", InvalidRequest),
        (BROKER, "x", InvalidRequest),
        (8, "x", InvalidRequest),
    ],
)
async def test_unknown_resources_are_rejected(
    simulated_broker: SimulatedBroker, kind: int, name: str, error: type[HeadraceError]
) -> None:
    assert (await describe(simulated_broker, kind, name)).error_code == error.code
    assert await replace(simulated_broker, kind, name, {}) == error.code
    assert await change(simulated_broker, kind, name, ("retention.ms", SET, "1")) == error.code


async def test_single_configs_are_set_deleted_appended_to_and_subtracted_from(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", retention_ms="1000")
    assert await change(simulated_broker, TOPIC, "t", ("segment.ms", SET, "5000"), ("retention.ms", DELETE, None)) == 0
    assert await shown(simulated_broker, TOPIC, "t", "segment.ms") == ("5000", DYNAMIC_TOPIC)
    assert (await shown(simulated_broker, TOPIC, "t", "retention.ms"))[1] == DEFAULT
    assert await change(simulated_broker, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == 0
    assert await shown(simulated_broker, TOPIC, "t", "cleanup.policy") == ("delete,compact", DYNAMIC_TOPIC)
    assert await change(simulated_broker, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert simulated_broker.broker.catalogue.topic("t").config.compacts
    assert not simulated_broker.broker.catalogue.topic("t").config.deletes
    await simulated_broker.restart()
    assert await shown(simulated_broker, TOPIC, "t", "cleanup.policy") == ("compact", DYNAMIC_TOPIC)


@pytest.mark.parametrize(
    "changes",
    [
        [("retention.ms", SET, "soon")],
        [("no.such", SET, "1")],
        [("retention.ms", SET, None)],
        [("retention.ms", 9, "1")],
        [("retention.ms", APPEND, "1")],
        [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
    ],
)
async def test_an_invalid_change_changes_nothing(
    simulated_broker: SimulatedBroker, changes: list[tuple[str, int, str]]
) -> None:
    await simulated_broker.create_topic("t")
    assert await change(simulated_broker, TOPIC, "t", ("segment.ms", SET, "5000"), *changes) in (
        InvalidConfig.code,
        InvalidRequest.code,
    )
    assert (await shown(simulated_broker, TOPIC, "t", "segment.ms"))[1] == DEFAULT


async def test_replacing_configs_drops_those_that_are_not_named(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", retention_ms="1000", segment_ms="2000")
    assert await replace(simulated_broker, TOPIC, "t", {"segment.ms": "3000"}) == 0
    assert await shown(simulated_broker, TOPIC, "t", "segment.ms") == ("3000", DYNAMIC_TOPIC)
    assert (await shown(simulated_broker, TOPIC, "t", "retention.ms"))[1] == DEFAULT
    assert await replace(simulated_broker, TOPIC, "t", {"segment.ms": "x"}) == InvalidConfig.code
    assert await shown(simulated_broker, TOPIC, "t", "segment.ms") == ("3000", DYNAMIC_TOPIC)


async def test_a_dry_run_checks_and_changes_nothing(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert await change(simulated_broker, TOPIC, "t", ("segment.ms", SET, "5"), dry_run=True) == 0
    assert await change(simulated_broker, TOPIC, "t", ("segment.ms", SET, "x"), dry_run=True) == InvalidConfig.code
    assert await replace(simulated_broker, TOPIC, "t", {"segment.ms": "5"}, dry_run=True) == 0
    assert await change(simulated_broker, BROKER, "1", ("log.retention.ms", SET, "5"), dry_run=True) == 0
    assert (await shown(simulated_broker, TOPIC, "t", "segment.ms"))[1] == DEFAULT
    assert (await shown(simulated_broker, BROKER, "1", "log.retention.ms"))[1] == DEFAULT


@pytest.mark.parametrize("name", ["1", ""])
async def test_changed_broker_defaults_apply_to_topics_and_survive_a_restart(
    simulated_broker: SimulatedBroker, name: str
) -> None:
    await simulated_broker.create_topic("t")
    await simulated_broker.create_topic("own", retention_ms="7000")
    assert await change(simulated_broker, BROKER, name, ("log.retention.ms", SET, "5000")) == 0
    for _ in range(2):
        assert await shown(simulated_broker, BROKER, "1", "log.retention.ms") == ("5000", DYNAMIC_BROKER)
        assert await shown(simulated_broker, TOPIC, "t", "retention.ms") == ("5000", DYNAMIC_BROKER)
        assert simulated_broker.partition("t").log.config.retention_ms == 5000
        assert simulated_broker.partition("own").log.config.retention_ms == 7000
        await simulated_broker.restart()
    assert await change(simulated_broker, BROKER, name, ("log.retention.ms", DELETE, None)) == 0
    assert (await shown(simulated_broker, TOPIC, "t", "retention.ms"))[1] == DEFAULT


async def test_replacing_the_brokers_configs_drops_those_that_are_not_named(simulated_broker: SimulatedBroker) -> None:
    await change(simulated_broker, BROKER, "1", ("log.retention.ms", SET, "5000"))
    assert await replace(simulated_broker, BROKER, "1", {"log.segment.bytes": "100000"}) == 0
    assert await shown(simulated_broker, BROKER, "1", "log.segment.bytes") == ("100000", DYNAMIC_BROKER)
    assert (await shown(simulated_broker, BROKER, "1", "log.retention.ms"))[1] == DEFAULT


async def test_some_configs_of_the_broker_need_a_restart(simulated_broker: SimulatedBroker) -> None:
    assert await change(simulated_broker, BROKER, "1", ("num.partitions", SET, "5")) == InvalidRequest.code


async def test_settings_of_the_start_are_shown_as_such(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(num_partitions="6", log_retention_ms="9000")
    assert await shown(simulated_broker, BROKER, "1", "num.partitions") == ("6", STATIC)
    await simulated_broker.create_topic("t")
    assert await shown(simulated_broker, TOPIC, "t", "retention.ms") == ("9000", STATIC)


async def test_two_concurrent_changes_of_the_broker_are_both_kept(simulated_broker: SimulatedBroker) -> None:
    def request(key: str) -> IncrementalAlterConfigsRequest:
        config = IncrementalConfig(name=key, config_operation=SET, value="100000")
        resource = IncrementalResource(resource_type=BROKER, resource_name="1", configs=[config])
        return IncrementalAlterConfigsRequest(resources=[resource])

    tasks = [simulated_broker.begin_send(request(key), 1) for key in ("log.retention.ms", "log.segment.bytes")]
    for task in tasks:
        assert (await task).responses[0].error_code == 0
    await simulated_broker.restart()
    assert await shown(simulated_broker, BROKER, "1", "log.retention.ms") == ("100000", DYNAMIC_BROKER)
    assert await shown(simulated_broker, BROKER, "1", "log.segment.bytes") == ("100000", DYNAMIC_BROKER)


async def test_a_default_that_contradicts_a_topic_is_rejected(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", min_compaction_lag_ms="5000")
    assert (
        await change(simulated_broker, BROKER, "1", ("log.cleaner.max.compaction.lag.ms", SET, "1000"))
        == InvalidConfig.code
    )
    await simulated_broker.restart()
    assert (await shown(simulated_broker, BROKER, "1", "log.cleaner.max.compaction.lag.ms"))[1] == DEFAULT


async def test_an_unavailable_registry_gives_a_retriable_error_and_changes_nothing(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    simulated_broker.registry.unavailable = True
    assert await change(simulated_broker, TOPIC, "t", ("segment.ms", SET, "5")) == RequestTimedOut.code
    assert await change(simulated_broker, BROKER, "1", ("log.retention.ms", SET, "5")) == RequestTimedOut.code
    simulated_broker.registry.unavailable = False
    assert (await shown(simulated_broker, TOPIC, "t", "segment.ms"))[1] == DEFAULT
    assert (await shown(simulated_broker, BROKER, "1", "log.retention.ms"))[1] == DEFAULT


async def test_resources_with_configs_are_listed_by_type(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("a")
    await simulated_broker.create_topic("b")
    assert await change(simulated_broker, GROUP, "g", ("share.auto.offset.reset", SET, "earliest")) == 0
    everything = [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (GROUP, "g")]
    assert await listed(simulated_broker) == everything
    assert await listed(simulated_broker, TOPIC, GROUP) == [(TOPIC, "a"), (TOPIC, "b"), (GROUP, "g")]
    assert await listed(simulated_broker, LOGGER, CLIENT_METRICS) == []
    assert await listed(simulated_broker, version=0) == []
    assert (
        await simulated_broker.send(ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    ).error_code == UnsupportedVersion.code
    for kind, name in everything:
        assert (await describe(simulated_broker, kind, name)).error_code == 0
    assert await replace(simulated_broker, GROUP, "g", {}) == 0
    assert await listed(simulated_broker, GROUP) == []


async def test_listeners_are_notified_of_changed_configs_but_not_of_a_dry_run(
    simulated_broker: SimulatedBroker,
) -> None:
    notified: list[int] = []
    simulated_broker.broker.catalogue.on_config_change.append(lambda config: notified.append(config.max_connections))
    assert await change(simulated_broker, BROKER, "1", ("max.connections", SET, "100"), dry_run=True) == 0
    assert await change(simulated_broker, BROKER, "1", ("max.connections", SET, "100")) == 0
    assert notified == [100]
    assert await change(simulated_broker, BROKER, "1", ("max.connections", SET, "0")) == InvalidConfig.code, (
        "it could not be reverted"
    )
