"""Group configs are described with their sources, changed, persisted, and seen by every broker."""

from __future__ import annotations

import pytest
from tests.unit.broker.admin.test_config_admin import DEFAULT, DELETE, SET, STATIC, change, describe, replace, shown
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import InvalidConfig, InvalidGroupId, InvalidRequest
from headrace.model.subscription_configs import SUBSCRIPTION_SETTINGS, SubscriptionConfig
from headrace.registry.configs import group_config_key, group_of_key
from headrace.registry.interface import Create

GROUP_TYPE = 32
DYNAMIC_GROUP = 8
RESET = "share.auto.offset.reset"
LOCK = "share.record.lock.duration.ms"
SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


async def test_an_unconfigured_group_has_the_defaults(simulated_broker: SimulatedBroker) -> None:
    result = await describe(simulated_broker, GROUP_TYPE, "g", include_synonyms=True, include_documentation=True)
    assert {config.name for config in result.configs} == set(SUBSCRIPTION_SETTINGS)
    assert {config.config_source for config in result.configs} == {DEFAULT}
    assert all(config.documentation and len(config.synonyms) == 1 for config in result.configs)
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()


async def test_a_setting_applies_at_once_and_is_described_with_its_synonyms(
    simulated_broker: SimulatedBroker,
) -> None:
    result: list[str] = []
    simulated_broker.broker.group_configs.on_changed.append(result.append)
    assert await change(simulated_broker, GROUP_TYPE, "g", (RESET, SET, "earliest"), (LOCK, SET, "1000")) == 0
    assert await shown(simulated_broker, GROUP_TYPE, "g", RESET) == ("earliest", DYNAMIC_GROUP)
    assert simulated_broker.broker.group_configs.of("g").share_record_lock_duration_ms == 1000
    (config,) = (await describe(simulated_broker, GROUP_TYPE, "g", [RESET], include_synonyms=True)).configs
    assert [(one.value, one.source) for one in config.synonyms] == [("earliest", DYNAMIC_GROUP), ("latest", DEFAULT)]
    assert await change(simulated_broker, GROUP_TYPE, "g", (RESET, DELETE, None)) == 0
    assert await shown(simulated_broker, GROUP_TYPE, "g", RESET) == ("latest", DEFAULT)
    assert await shown(simulated_broker, GROUP_TYPE, "other", LOCK) == ("30000", DEFAULT)
    assert result == ["g", "g"]


async def test_all_can_be_replaced_at_once(simulated_broker: SimulatedBroker) -> None:
    await change(simulated_broker, GROUP_TYPE, "g", (RESET, SET, "earliest"))
    assert await replace(simulated_broker, GROUP_TYPE, "g", {LOCK: "2000"}) == 0
    assert await shown(simulated_broker, GROUP_TYPE, "g", RESET) == ("latest", DEFAULT)
    assert await shown(simulated_broker, GROUP_TYPE, "g", LOCK) == ("2000", DYNAMIC_GROUP)
    assert await replace(simulated_broker, GROUP_TYPE, "g", {}) == 0
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()
    assert await simulated_broker.registry.get(group_config_key("g")) is None


@pytest.mark.parametrize(
    ("name", "value"), [("bogus", "1"), (RESET, "sometimes"), (LOCK, "soon"), ("headrace.filter", "header.x = ")]
)
async def test_an_invalid_setting_is_rejected_and_changes_nothing(
    simulated_broker: SimulatedBroker, name: str, value: str
) -> None:
    assert await change(simulated_broker, GROUP_TYPE, "g", (LOCK, SET, "5000"), (name, SET, value)) in (
        InvalidConfig.code,
        InvalidRequest.code,
    )
    assert await replace(simulated_broker, GROUP_TYPE, "g", {name: value}) == InvalidConfig.code
    assert await change(simulated_broker, GROUP_TYPE, "", (LOCK, SET, "5000")) == InvalidGroupId.code
    assert (await describe(simulated_broker, GROUP_TYPE, "")).error_code == InvalidGroupId.code
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()


async def test_a_dry_run_changes_nothing(simulated_broker: SimulatedBroker) -> None:
    assert await change(simulated_broker, GROUP_TYPE, "g", (LOCK, SET, "5000"), dry_run=True) == 0
    assert await replace(simulated_broker, GROUP_TYPE, "g", {LOCK: "5000"}, dry_run=True) == 0
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()


async def test_configurations_survive_a_restart(simulated_broker: SimulatedBroker) -> None:
    await change(simulated_broker, GROUP_TYPE, "g", (LOCK, SET, "5000"))
    await simulated_broker.restart()
    assert await shown(simulated_broker, GROUP_TYPE, "g", LOCK) == ("5000", DYNAMIC_GROUP)


async def test_consumer_groups_use_the_timing_of_the_broker_by_default(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.restart(group_consumer_session_timeout_ms="50000")
    assert await shown(simulated_broker, GROUP_TYPE, "g", SESSION) == ("50000", STATIC)
    assert simulated_broker.broker.group_configs.consumer_config_of("g").session_timeout_ms == 50_000
    assert await change(simulated_broker, GROUP_TYPE, "g", (SESSION, SET, "60000")) == 0
    (config,) = (await describe(simulated_broker, GROUP_TYPE, "g", [SESSION], include_synonyms=True)).configs
    assert [(one.name, one.value, one.source) for one in config.synonyms] == [
        (SESSION, "60000", DYNAMIC_GROUP),
        (f"group.{SESSION}", "50000", STATIC),
        (f"group.{SESSION}", "45000", DEFAULT),
    ]
    assert simulated_broker.broker.group_configs.consumer_config_of("g").session_timeout_ms == 60_000
    assert await change(simulated_broker, GROUP_TYPE, "g", (LOCK, SET, "5000"), (SESSION, DELETE, None)) == 0
    assert simulated_broker.broker.group_configs.consumer_config_of("g").session_timeout_ms == 50_000


@pytest.mark.parametrize(
    ("name", "value"), [(SESSION, "44999"), (SESSION, "60001"), (HEARTBEAT, "4999"), (HEARTBEAT, "15001")]
)
async def test_the_timing_of_a_consumer_group_keeps_to_the_limits_of_the_broker(
    simulated_broker: SimulatedBroker, name: str, value: str
) -> None:
    assert await change(simulated_broker, GROUP_TYPE, "g", (name, SET, value)) == InvalidConfig.code
    assert await replace(simulated_broker, GROUP_TYPE, "g", {name: value}) == InvalidConfig.code
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()


async def test_a_session_must_be_longer_than_a_heartbeat_interval(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(group_consumer_min_session_timeout_ms="1000")
    assert await change(simulated_broker, GROUP_TYPE, "g", (SESSION, SET, "5000")) == InvalidConfig.code
    assert await change(simulated_broker, GROUP_TYPE, "g", (SESSION, SET, "5001")) == 0
    assert await change(simulated_broker, GROUP_TYPE, "g", (HEARTBEAT, SET, "6000")) == InvalidConfig.code


@pytest.mark.parametrize("group", ["a/b", "a.b", ".", "..", "=a", "ä ö", "%2F", "a%b", "__acks"])
async def test_a_group_may_have_any_name(simulated_broker: SimulatedBroker, group: str) -> None:
    assert group_of_key(group_config_key(group)) == group
    assert await change(simulated_broker, GROUP_TYPE, group, (LOCK, SET, "5000")) == 0
    assert simulated_broker.broker.group_configs.of(group).share_record_lock_duration_ms == 5000


@pytest.mark.parametrize("value", [b"{", b'{"bogus": "1"}', b'{"share.session.timeout.ms": "x"}'])
async def test_an_unusable_configuration_keeps_the_previous_one(
    simulated_broker: SimulatedBroker, value: bytes
) -> None:
    key = group_config_key("g")
    await simulated_broker.host.start(simulated_broker.registry.commit([Create(key, value)]), "commit")
    await simulated_broker.pass_time(1)
    assert simulated_broker.broker.group_configs.of("g") == SubscriptionConfig()
    assert await change(simulated_broker, GROUP_TYPE, "other", (LOCK, SET, "5000")) == 0


@in_simulated_cluster(2)
async def test_a_change_at_one_broker_reaches_the_others(simulated_cluster: SimulatedCluster) -> None:
    one, two = simulated_cluster[1], simulated_cluster[2]
    assert await change(one, GROUP_TYPE, "g", (LOCK, SET, "5000")) == 0
    await simulated_cluster.wait_until(lambda: two.broker.group_configs.of("g").share_record_lock_duration_ms == 5000)
    assert await change(two, GROUP_TYPE, "g", (RESET, SET, "earliest")) == 0
    await simulated_cluster.wait_until(lambda: one.broker.group_configs.of("g").share_auto_offset_reset == "earliest")
    assert one.broker.group_configs.of("g") == two.broker.group_configs.of("g")
