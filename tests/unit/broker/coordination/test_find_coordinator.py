"""FindCoordinator: the coordinators of groups and of transactional ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.broker.groups.classic_members import GROUP
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from headrace.model.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.model.registry_records import BrokerRecord
from headrace.wire.messages.groups import FindCoordinatorRequest

GROUPS, TRANSACTIONS, SHARE_GROUPS = 0, 1, 2

Leader = Callable[[str, int], BrokerRecord | None]


def led_by(monkeypatch: pytest.MonkeyPatch, leader: Leader) -> None:
    monkeypatch.setattr(Catalogue, "leader_node", lambda _, topic, index: leader(topic, index))


async def test_one_broker_coordinates_everything(simulated_broker: SimulatedBroker) -> None:
    for version in range(4):
        response = await simulated_broker.send(FindCoordinatorRequest(key=GROUP), version)
        assert (response.error_code, response.node_id, response.host, response.port) == (0, 1, "broker.example", 9092)
    for version in range(4, 7):
        response = await simulated_broker.send(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version)
        assert [(one.key, one.error_code, one.node_id) for one in response.coordinators] == [("a", 0, 1), ("b", 0, 1)]
    found = await simulated_broker.send(FindCoordinatorRequest(key="tx", key_type=TRANSACTIONS), 3)
    assert (found.error_code, found.node_id) == (0, 1)


@pytest.mark.parametrize(("key_type", "topic"), [(GROUPS, CONSUMER_OFFSETS), (TRANSACTIONS, TRANSACTION_STATE)])
async def test_the_topic_is_created_on_the_first_request(
    simulated_broker: SimulatedBroker, key_type: int, topic: str
) -> None:
    assert simulated_broker.broker.catalogue.find(topic) is None
    await simulated_broker.send(FindCoordinatorRequest(key="first", key_type=key_type), 3)
    assert simulated_broker.broker.catalogue.find(topic) is not None


@pytest.mark.parametrize(("key_type", "topic"), [(GROUPS, CONSUMER_OFFSETS), (TRANSACTIONS, TRANSACTION_STATE)])
async def test_the_coordinator_is_the_leader_of_the_partition_of_the_key(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, key_type: int, topic: str
) -> None:
    led_by(
        monkeypatch,
        lambda name, index: BrokerRecord(node_id=100 + index, epoch=1, host=name, port=9000 + index),
    )
    keys = ["a", "b", "c", ""]
    response = await simulated_broker.send(FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type), 6)
    count = simulated_broker.broker.catalogue.topic(topic).partition_count
    assert [(one.key, one.error_code, one.node_id, one.host, one.port) for one in response.coordinators] == [
        (key, 0, 100 + java_hash(key) % count, topic, 9000 + java_hash(key) % count) for key in keys
    ]


async def test_a_partition_without_leader_has_no_coordinator(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    led_by(monkeypatch, lambda *_: None)
    found = await simulated_broker.send(FindCoordinatorRequest(key=GROUP), 3)
    assert (found.error_code, found.node_id) == (CoordinatorNotAvailable.code, -1)


async def test_an_internal_topic_unknown_to_this_broker_gives_a_retriable_error(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unheard_of(topic: str, index: int) -> BrokerRecord:
        raise UnknownTopicOrPartition(f"there is no partition {topic}-{index}")

    led_by(monkeypatch, unheard_of)
    found = await simulated_broker.send(FindCoordinatorRequest(key=GROUP), 3)
    assert found.error_code == CoordinatorNotAvailable.code


@pytest.mark.parametrize(("key_type", "error"), [(SHARE_GROUPS, UnsupportedVersion), (7, InvalidRequest)])
async def test_other_coordinator_types_are_rejected(
    simulated_broker: SimulatedBroker, key_type: int, error: type[UnsupportedVersion]
) -> None:
    rejected = await simulated_broker.send(FindCoordinatorRequest(key="k", key_type=key_type), 3)
    assert (rejected.error_code, rejected.node_id) == (error.code, -1)
