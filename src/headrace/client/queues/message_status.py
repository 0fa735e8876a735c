"""How messages stand for the subscriptions of their partition, asked at its leader."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.wire.messages.queues import MessageStatusRequest, MessageStatusResponse, SubscriptionStatus

SETTLED = "settled"


async def message_statuses(
    cluster: Cluster,
    target: TopicPartition,
    offsets: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    with_history: bool = False,
) -> Sequence[SubscriptionStatus]:
    """For each offset and each of these subscriptions, or all. With history: also how and when, as far as known."""
    request = MessageStatusRequest(
        topic=target.topic,
        partition_index=target.partition,
        offsets=[*offsets],
        subscriptions=None if names is None else [*names],
        with_history=with_history,
    )

    async def ask() -> Sequence[SubscriptionStatus]:
        leader = (await cluster.partition(*target)).leader
        answer: MessageStatusResponse = await cluster.call(request, node_id=leader)
        raise_for_code(answer.error_code, answer.error_message)
        return answer.statuses

    return await cluster.call_with_retries(ask)
