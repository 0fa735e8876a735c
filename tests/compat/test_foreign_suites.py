"""Behaviour on which the test suites of kafkajs, kafka-go and sarama depend; each response is that of Kafka 4.3.0."""

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


def test_an_older_request_creates_a_topic_of_default_size(raw: RawConnection, name: str) -> None:
    request = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    [created] = raw.call(19, 3, topics=[request], timeout=30_000, validate_only=False).topics
    assert created.error_code == 0


def test_a_client_that_requests_sasl_gets_an_error_and_is_not_disconnected(raw: RawConnection) -> None:
    response = raw.call(17, 1, mechanism="PLAIN")
    assert (response.error_code, response.mechanisms) == (ILLEGAL_SASL_STATE, ())


def test_there_are_no_acls_to_list(raw: RawConnection) -> None:
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    names = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    assert raw.call(29, 3, **anything, **names).error_code == SECURITY_DISABLED


def test_authorized_operations_are_returned_on_request(raw: RawConnection, address: str, name: str) -> None:
    create_topic(address, name, 1)
    [topic] = raw.call(75, 0, topics=[{"name": name}], response_partition_limit=10, cursor=None).topics
    assert topic.topic_authorized_operations == TOPIC_RIGHTS
    raw.call(10, 4, key_type=0, coordinator_keys=[name])  # a broker that never had a group coordinates none
    [group] = raw.call(15, 5, groups=[name], include_authorized_operations=True).groups
    assert group.authorized_operations == GROUP_RIGHTS
    cluster = raw.call(60, 1, include_cluster_authorized_operations=True, endpoint_type=1)
    assert cluster.cluster_authorized_operations == CLUSTER_RIGHTS
