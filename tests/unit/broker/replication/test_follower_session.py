"""The follower's side of a fetch session: the contents of requests, and the meaning of responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.partition import Partition
from headrace.broker.replication.replica_fetcher import FollowedPartition, FollowerSession
from headrace.model.broker_configs import BrokerConfig
from headrace.storage.log.derived_state import LeaderEpochCache
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

A, B = UUID(int=1), UUID(int=2)
CONFIG = BrokerConfig()


@dataclass(eq=False)
class Position:
    """Of a log, as far as a fetch is concerned."""

    topic_id: UUID
    end_offset: int = 0
    start_offset: int = 0
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)


def followed(position: Position, leader_epoch: int = 5) -> FollowedPartition:
    partition = SimpleNamespace(topic_id=position.topic_id, index=0, log=position)
    return FollowedPartition(cast("Partition", partition), leader_epoch, -1, False)


def requested(request: FetchRequest) -> dict[UUID, Any]:
    return {topic.topic_id: topic.partitions[0] for topic in request.topics}


def forgotten(request: FetchRequest) -> list[UUID]:
    return [topic.topic_id for topic in request.forgotten_topics_data]


def response_to(session_id: int, *topic_ids: UUID) -> FetchResponse:
    data = [FetchableTopicResponse(topic_id=one, partitions=[PartitionData(partition_index=0)]) for one in topic_ids]
    return FetchResponse(session_id=session_id, responses=data)


def test_the_first_request_has_the_replica_and_every_partition() -> None:
    session = FollowerSession(7, 3)
    position = Position(A, end_offset=10, start_offset=4, epochs=LeaderEpochCache([(2, 4), (4, 8)]))
    request = session.request([followed(position)], CONFIG)
    assert request.replica_state is not None
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 3)
    assert (request.session_id, request.session_epoch) == (0, 0)
    one = requested(request)[A]
    assert (one.fetch_offset, one.last_fetched_epoch, one.current_leader_epoch) == (10, 4, 5)
    assert one.log_start_offset == 4


@pytest.mark.parametrize(("epochs", "last"), [([(2, 0), (4, 10)], 2), ([(2, 0), (4, 9)], 4)])
def test_the_last_fetched_epoch_is_that_of_the_last_batch(epochs: list[tuple[int, int]], last: int) -> None:
    position = Position(A, end_offset=10, epochs=LeaderEpochCache(epochs))
    assert requested(FollowerSession(7, 3).request([followed(position)], CONFIG))[A].last_fetched_epoch == last


def test_an_empty_log_has_no_history() -> None:
    position = Position(A, end_offset=10, start_offset=10, epochs=LeaderEpochCache([(2, 0)]))
    assert requested(FollowerSession(7, 3).request([followed(position)], CONFIG))[A].last_fetched_epoch == -1


def test_later_requests_contain_only_changed_partitions() -> None:
    session = FollowerSession(7, 3)
    first, second = Position(A), Position(B)
    ones = [followed(first), followed(second)]
    assert set(requested(session.request(ones, CONFIG))) == {A, B}
    assert [one for one, _ in session.partitions(response_to(99, A))] == [ones[0]]
    first.end_offset = 3
    request = session.request(ones, CONFIG)
    assert (request.session_id, request.session_epoch, set(requested(request))) == (99, 1, {A})
    list(session.partitions(response_to(99)))
    request = session.request(ones, CONFIG)
    assert (request.session_epoch, requested(request), forgotten(request)) == (2, {}, [])
    second.end_offset = second.start_offset = 6  # trimmed
    assert requested(session.request(ones, CONFIG))[B].log_start_offset == 6


def test_a_new_leader_epoch_is_sent_even_without_new_records() -> None:
    session = FollowerSession(7, 3)
    position = Position(A)
    session.request([followed(position, leader_epoch=5)], CONFIG)
    list(session.partitions(response_to(99)))
    assert requested(session.request([followed(position, leader_epoch=6)], CONFIG))[A].current_leader_epoch == 6


def test_unwanted_partitions_are_forgotten_and_sent_again_later() -> None:
    session = FollowerSession(7, 3)
    ones = [followed(Position(A)), followed(Position(B))]
    session.request(ones, CONFIG)
    list(session.partitions(response_to(99)))
    request = session.request(ones[:1], CONFIG)
    assert (requested(request), forgotten(request)) == ({}, [B])
    assert list(session.partitions(response_to(99, B))) == [], "a partition that was not requested is ignored"
    request = session.request(ones, CONFIG)
    assert (set(requested(request)), forgotten(request)) == ({B}, [])


def test_after_a_reset_a_new_session_sends_every_partition() -> None:
    session = FollowerSession(7, 3)
    ones = [followed(Position(A)), followed(Position(B))]
    session.request(ones, CONFIG)
    list(session.partitions(response_to(99)))
    session.reset()
    request = session.request(ones, CONFIG)
    assert (request.session_id, request.session_epoch, set(requested(request))) == (0, 0, {A, B})
    assert forgotten(request) == []


def test_without_a_session_every_request_has_every_partition() -> None:
    session = FollowerSession(7, 3)
    ones = [followed(Position(A))]
    for _ in range(2):
        request = session.request(ones, CONFIG)
        assert (request.session_epoch, set(requested(request))) == (0, {A})
        list(session.partitions(response_to(0)))
