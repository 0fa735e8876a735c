"""The broker's settings for groups of the newer protocol go together, or are refused at start."""

from __future__ import annotations

import pytest

from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import InvalidConfig


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"session.timeout.ms": "1000"}, r"session.timeout.ms=1000 is not between .*=45000 and .*=60000"),
        ({"heartbeat.interval.ms": "20000"}, r"heartbeat.interval.ms=20000 is not between .*=5000 and .*=15000"),
        ({"min.session.timeout.ms": "1", "session.timeout.ms": "5000"}, "is not smaller than"),
        ({"migration.policy": "both"}, "bidirectional, upgrade, downgrade, disabled"),
        ({"assignors": "best"}, "List must only contain: uniform, range"),
        ({"assignors": ""}, "List must not be empty"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        BrokerConfig.from_settings({f"group.consumer.{name}": value for name, value in settings.items()})


def test_the_first_assignor_can_be_chosen() -> None:
    config = BrokerConfig.from_settings({"group.consumer.assignors": "range,uniform"})
    assert config.group_consumer_assignors == ("range", "uniform")


def test_a_group_may_change_its_protocol_either_way_unless_it_is_configured_otherwise() -> None:
    assert BrokerConfig.from_settings({}).group_consumer_migration_policy == "bidirectional"
    for policy in ("upgrade", "downgrade", "disabled", "BIDIRECTIONAL"):
        config = BrokerConfig.from_settings({"group.consumer.migration.policy": policy})
        assert config.group_consumer_migration_policy == policy
