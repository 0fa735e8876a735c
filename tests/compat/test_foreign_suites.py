"""What the suites of kafkajs, kafka-go and sarama stumbled over; each answer is the one of Kafka 4.3.0."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.raw import RawConnection
from tests.integration.records import create_topic

ILLEGAL_SASL_STATE, SECURITY_DISABLED = 34, 54
TOPIC_RIGHTS, GROUP_RIGHTS, CLUSTER_RIGHTS = 3576, 3400, 8096


@pytest.fixture
def raw(address: str) -> Iterator[RawConnection]:
    with RawConnection(address) as connection:
        yield connection


def test_a_topic_of_default_size_is_made_by_an_older_request(raw: RawConnection, name: str) -> None:
    request = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    [created] = raw.call(19, 3, topics=[request], timeout=30_000, validate_only=False).topics
    assert created.error_code == 0


def test_a_client_that_wants_sasl_is_told_and_not_cut_off(raw: RawConnection) -> None:
    answer = raw.call(17, 1, mechanism="PLAIN")
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, ())


def test_there_are_no_access_rules_to_list(raw: RawConnection) -> None:
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    names = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    assert raw.call(29, 3, **anything, **names).error_code == SECURITY_DISABLED


def test_whoever_asks_what_he_may_do_is_told(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1)
    [topic] = raw.call(75, 0, topics=[{"name": name}], response_partition_limit=10, cursor=None).topics
    assert topic.topic_authorized_operations == TOPIC_RIGHTS
    raw.call(10, 4, key_type=0, coordinator_keys=[name])  # a broker that never had a group coordinates none
    [group] = raw.call(15, 5, groups=[name], include_authorized_operations=True).groups
    assert group.authorized_operations == GROUP_RIGHTS
    cluster = raw.call(60, 1, include_cluster_authorized_operations=True, endpoint_type=1)
    assert cluster.cluster_authorized_operations == CLUSTER_RIGHTS
