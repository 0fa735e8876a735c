"""Where share groups stand, asked of those who know: the leaders of the partitions, here or at other brokers.

One call is one attempt; what a leader refuses, or cannot be asked, is told for each of its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headrace.broker.cluster.peers import Peers
from headrace.broker.handlers import RequestContext
from headrace.broker.queues.subscription_admin import SubscriptionAdminRequests
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import CoordinatorNotAvailable, GroupIdNotFound, HeadraceError
from headrace.model.names import ACKS_PREFIX
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsTopic,
)

TopicPartition = tuple[str, int]

_REQUEST_SECONDS = 10.0
_CONNECTION_KEY = "subscriptions"
_CREATE, _SEEK, _DELETE = range(3)
_INTERNAL_CONTEXT = RequestContext(0, _CONNECTION_KEY, "", "", lambda _is_held: None, lambda: None)
"""Of a request that the broker makes for itself."""


class SharePartitionOffset(NamedTuple):
    floor: int
    backlog: int


class ShareOffsetsLookup:
    def __init__(self, catalogue: Catalogue, admin: SubscriptionAdminRequests, peers: Peers, node_id: int) -> None:
        self._catalogue = catalogue
        self._admin = admin
        self._peers = peers
        self._node_id = node_id

    def known_partitions(self) -> list[TopicPartition]:
        """All partitions in which a group may stand."""
        owners = [topic for topic in self._catalogue if self._catalogue.colocated_topics.find(topic.name, ACKS_PREFIX)]
        return [(topic.name, index) for topic in owners for index in range(topic.partition_count)]

    async def describe(
        self, group_id: str, places: Collection[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, SharePartitionOffset | HeadraceError | None]:
        """None where the group has not been."""

        def request(named: Mapping[str, list[int]]) -> DescribeSubscriptionsRequest:
            topics = [DescribeSubscriptionsTopic(topic, indexes) for topic, indexes in named.items()]
            return DescribeSubscriptionsRequest(subscriptions=[group_id], topics=topics)

        answers, errors = await self._ask(places, request, context)
        offsets_lookup: dict[TopicPartition, SharePartitionOffset | HeadraceError | None] = dict.fromkeys(places)
        offsets_lookup.update(errors)
        for place, answer in answers.items():
            for one in answer.subscriptions:
                offsets_lookup[place] = SharePartitionOffset(one.floor, one.backlog)
        return offsets_lookup

    async def names(self, places: Collection[TopicPartition]) -> frozenset[str]:
        """All subscriptions of these partitions. Raises unless every leader has responded."""

        def request(named: Mapping[str, list[int]]) -> DescribeSubscriptionsRequest:
            topics = [DescribeSubscriptionsTopic(topic, indexes) for topic, indexes in named.items()]
            return DescribeSubscriptionsRequest(subscriptions=None, topics=topics)

        responses, errors = await self._ask(places, request, _INTERNAL_CONTEXT)
        for error in errors.values():
            raise error
        return frozenset(one.subscription for response in responses.values() for one in response.subscriptions)

    async def seek(
        self, group_id: str, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Let the group go on from these offsets, also where it has not been; what it has settled behind them is
        delivered again."""
        _, errors = await self._alter(group_id, _CREATE, offsets, context)
        made = {place: offset for place, offset in offsets.items() if place not in errors}
        _, more = await self._alter(group_id, _SEEK, made, context)
        return {place: errors.get(place, more.get(place)) for place in offsets}

    async def delete(
        self, group_id: str, places: Iterable[TopicPartition], context: RequestContext
    ) -> dict[TopicPartition, HeadraceError | None]:
        """Let the group forget these, as if it had never been there."""
        _, errors = await self._alter(group_id, _DELETE, dict.fromkeys(places, -1), context)
        return {place: error for place, error in errors.items() if not isinstance(error, GroupIdNotFound)}

    async def forget(self, group_id: str, context: RequestContext) -> None:
        """The same of all that it has been at."""
        for error in (await self.delete(group_id, self.known_partitions(), context)).values():
            if error is not None:
                raise CoordinatorNotAvailable(f"deleting the acknowledgements of {group_id} failed: {error.message}")

    async def _alter(
        self, group_id: str, action: int, offsets: Mapping[TopicPartition, int], context: RequestContext
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        def request(named: Mapping[str, list[int]]) -> AlterSubscriptionsRequest:
            topics = [
                AlterSubscriptionsTopic(
                    topic,
                    [AlterSubscriptionsPartition(index, offset=offsets[topic, index]) for index in indexes],
                )
                for topic, indexes in named.items()
            ]
            return AlterSubscriptionsRequest(subscription=group_id, action=action, topics=topics)

        return await self._ask(offsets, request, context)

    async def _ask(
        self,
        places: Iterable[TopicPartition],
        request: Callable[[Mapping[str, list[int]]], Any],
        context: RequestContext,
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, HeadraceError]]:
        """The leaders' answers by partition, and what was refused."""
        answers: dict[TopicPartition, Any] = {}
        errors: dict[TopicPartition, HeadraceError] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, index in places:
            try:
                leader = self._catalogue.partition_record(topic, index).leader
            except HeadraceError as error:
                errors[topic, index] = error
            else:
                by_leader.setdefault(leader, {}).setdefault(topic, []).append(index)

        async def ask_leader(node_id: int, named: Mapping[str, list[int]]) -> None:
            try:
                _split_errors(await self._call(node_id, request(named), context), answers, errors)
            except HeadraceError as error:
                errors.update({(topic, index): error for topic, indexes in named.items() for index in indexes})

        await switch_to_task()
        async with asyncio.TaskGroup() as tasks:
            for node_id, named in by_leader.items():
                tasks.create_task(ask_leader(node_id, named))
        return answers, errors

    async def _call(self, node_id: int, request: Any, context: RequestContext) -> Any:
        if node_id != self._node_id:
            return await self._peers.call(
                node_id, request, timeout_seconds=_REQUEST_SECONDS, connection_key=_CONNECTION_KEY
            )
        if isinstance(request, AlterSubscriptionsRequest):
            return await self._admin.alter(request, context)
        return await self._admin.describe(request, context)


def _split_errors(
    response: Any, answers: dict[TopicPartition, Any], errors: dict[TopicPartition, HeadraceError]
) -> None:
    from headrace.client.errors import error_of_code  # imported on first use: keeps startup fast

    for topic in response.topics:
        for answer in topic.partitions:
            place = topic.name, answer.partition_index
            if answer.error_code:
                errors[place] = error_of_code(answer.error_code, answer.error_message)
            else:
                answers[place] = answer
