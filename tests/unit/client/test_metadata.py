"""The response of a broker whose metadata lags does not undo what the client has learned."""

from __future__ import annotations

from uuid import UUID

from headrace.client.metadata import ClusterView
from headrace.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS = UUID(int=1)


def test_a_leader_is_not_replaced_by_one_of_an_earlier_epoch() -> None:
    view = _learned(_orders(leaders=[2], epoch=5), _orders(leaders=[1], epoch=4))
    assert view.topics["orders"].partitions[0].leader == 2


def test_partitions_that_were_seen_stay_when_a_lagging_broker_does_not_know_them() -> None:
    view = _learned(_orders(leaders=[1, 2]), _orders(leaders=[1]))
    assert [partition.leader for partition in view.topics["orders"].partitions] == [1, 2]


def test_a_topic_that_was_created_again_has_its_own_partitions() -> None:
    view = _learned(_orders(leaders=[1, 2]), _orders(leaders=[1], topic_id=UUID(int=2)))
    assert len(view.topics["orders"].partitions) == 1


def test_a_topic_without_an_id_has_the_partitions_of_the_last_response() -> None:
    view = _learned(_orders(leaders=[1, 2], topic_id=UUID(int=0)), _orders(leaders=[1], topic_id=UUID(int=0)))
    assert len(view.topics["orders"].partitions) == 1


def _learned(*responses: MetadataResponse) -> ClusterView:
    view = ClusterView()
    for response in responses:
        view = view.merged(response, complete=False)
    return view


def _orders(*, leaders: list[int], epoch: int = 0, topic_id: UUID = ORDERS) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch)
        for index, leader in enumerate(leaders)
    ]
    return MetadataResponse(topics=[MetadataResponseTopic(name="orders", topic_id=topic_id, partitions=partitions)])
