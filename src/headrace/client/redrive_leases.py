"""What became of dead letters: the subscription `headrace-redrive` of a dead-letter topic, and leases of single ones.

Each is leased by its offset, so the others are not touched: a lease that nobody wants would count as a delivery. What
was leased and is not done comes back at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for
from headrace.client.leased import Receipt
from headrace.client.metadata import TopicPartition
from headrace.client.settling import ACK, NACK, settle
from headrace.client.subscription_admin import START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.model.errors import GroupIdNotFound
from headrace.model.message_ids import MessageId
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.lease_offsets import LeaseOffsetsRequest, LeaseOffsetsResponse, OffsetRange
from headrace.wire.messages.message_status import MessageStatusRequest, MessageStatusResponse, SubscriptionStatus
from headrace.wire.messages.settle import SettleItem

REDRIVE = "headrace-redrive"
READY = "ready"
_LEASED = "leased"

_DELIVERIES_MAX = "1000"  # the most there can be: a letter that could not be sent back is not to be lost for that
_LEASE_MS = 5 * 60_000
_GROUP_RESOURCE = 32


class LeasedLetters:
    """`receipts` by offset. `done` is for whoever has them: those are settled in the end, and the others come back."""

    def __init__(self, receipts: Mapping[int, Receipt]) -> None:
        self.receipts = receipts
        self.done: set[int] = set()


class RedriveLeases:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._admin = SubscriptionAdmin(cluster)
        self._member = f"redrive-{cluster.entropy.token(9)}"

    async def begin(self) -> Mapping[TopicPartition, int]:
        """Make the subscription where it is missing, from the first dead letter on; where it stands."""
        change = AlterableConfig(name="share.delivery.count.limit", config_operation=0, value=_DELIVERIES_MAX)
        resource = AlterConfigsResource(resource_type=_GROUP_RESOURCE, resource_name=REDRIVE, configs=[change])

        async def configure() -> None:
            answer = await self._cluster.call(IncrementalAlterConfigsRequest(resources=[resource]))
            for told in answer.responses:
                raise_for(told.error_code, told.error_message)

        await self._cluster.persist(configure)
        return await self._admin.create(self._topic, REDRIVE, Position(START))

    async def backlogs(self) -> Sequence[PartitionBacklog]:
        """How far the subscription is, where it is made."""
        try:
            return await self._admin.describe(REDRIVE, [self._topic])
        except GroupIdNotFound:
            return []

    async def states(self, target: TopicPartition, offsets: Sequence[int]) -> dict[int, str]:
        """What became of each; without the subscription nothing has."""
        try:
            statuses = await self._cluster.persist(lambda: self._statuses(target, offsets))
        except GroupIdNotFound:
            statuses = []
        return dict.fromkeys(offsets, READY) | {status.offset: status.state for status in statuses}

    async def _statuses(self, target: TopicPartition, offsets: Collection[int]) -> list[SubscriptionStatus]:
        request = MessageStatusRequest(
            topic=self._topic,
            partition_index=target.partition,
            offsets=[*offsets],
            subscriptions=[REDRIVE],
            with_history=False,
        )
        response: MessageStatusResponse = await self._cluster.call(request, node_id=await self._leader(target))
        raise_for(response.error_code, response.error_message)
        return response.statuses

    @asynccontextmanager
    async def lease(self, target: TopicPartition, offsets: Collection[int]) -> AsyncIterator[LeasedLetters]:
        """Those of the offsets that are neither settled nor leased by somebody else."""
        leased = await self._lease(target, offsets)
        try:
            yield leased
        finally:
            await self._settle(leased)

    async def _lease(self, target: TopicPartition, offsets: Collection[int]) -> LeasedLetters:
        request = LeaseOffsetsRequest(
            subscription=REDRIVE,
            member=self._member,
            topic=self._topic,
            partition_index=target.partition,
            lease_ms=_LEASE_MS,
            wanted=[OffsetRange(offset, offset) for offset in sorted(offsets)],
        )

        async def ask() -> LeasedLetters:
            answer: LeaseOffsetsResponse = await self._cluster.call(request, node_id=await self._leader(target))
            raise_for(answer.error_code, answer.error_message)
            attempts = {offset: one.attempt for one in answer.leased for offset in range(one.first, one.last + 1)}
            attempts |= await self._leased_already(target, [one for one in offsets if one not in attempts])
            return LeasedLetters(
                {
                    offset: Receipt(MessageId(*target, offset), attempt, answer.lease_epoch, self._member)
                    for offset, attempt in attempts.items()
                }
            )

        return await self._cluster.persist(ask)

    async def _leased_already(self, target: TopicPartition, offsets: Collection[int]) -> dict[int, int]:
        """The attempts of those that an earlier request of ours has leased, whose response was lost. Otherwise they
        would count as dealt with by another redrive."""
        if not offsets:
            return {}
        statuses = await self._statuses(target, offsets)
        return {one.offset: one.attempts for one in statuses if one.state == _LEASED and one.member == self._member}

    async def _settle(self, leased: LeasedLetters) -> None:
        done = [receipt for offset, receipt in leased.receipts.items() if offset in leased.done]
        left = [receipt for offset, receipt in leased.receipts.items() if offset not in leased.done]
        refused = []
        if done:
            refused += await settle(self._cluster, REDRIVE, done, SettleItem(how=ACK))
        if left:
            how = SettleItem(how=NACK, delay_ms=0, reason="it was not sent back")
            refused += await settle(self._cluster, REDRIVE, left, how)
        for one in refused:
            raise one.error

    async def _leader(self, target: TopicPartition) -> int:
        return (await self._cluster.partition(*target)).leader
