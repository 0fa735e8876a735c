"""Administer subscriptions: DescribeSubscriptions, AlterSubscriptions, MessageStatus and DescribePushes.

- The configuration of a subscription is deleted before the subscription.
- A status is returned only when it is committed, because clients rely on a message being settled.
- DescribePushes returns the webhooks. Its version is a hash of the response, so it is the same on every broker
  and after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.coordination.state_log import read_batches
from headrace.broker.handlers import ReportErrors, RequestContext
from headrace.broker.partition import Partition
from headrace.broker.queues.start_position import deliverable_end, offset_for_timestamp
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.queues.subscription_requests import NAME_LENGTH_MAX
from headrace.machines.queues.subscription_values import DeliveryState
from headrace.model.errors import HeadraceError, InvalidRequest, OffsetOutOfRange
from headrace.model.names import check_group_id
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.batches.batch import read_records, split_batches
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsPartitionResponse,
    AlterSubscriptionsRequest,
    AlterSubscriptionsResponse,
    AlterSubscriptionsTopicResponse,
    DescribedPush,
    DescribedSubscription,
    DescribePushesRequest,
    DescribePushesResponse,
    DescribeSubscriptionsPartitionResponse,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsResponse,
    DescribeSubscriptionsTopicResponse,
    MessageStatusRequest,
    MessageStatusResponse,
    SubscriptionStatus,
)

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard
    from headrace.machines.queues.message_history import MessageEvent

OFFSETS_MAX = 1000  # per MessageStatus
_LATEST, _EARLIEST = -1, -2
_CREATE, _SEEK, _DELETE = range(3)
_UNSET = -1
_ONE_BATCH = 1  # byte
_UNPACKED_BYTES_MAX = 64 << 20
_VERSION_BYTES = 12


class SubscriptionAdminRequests:
    def __init__(self, subscriptions: SubscriptionCoordinator, configs: SubscriptionConfigs) -> None:
        self._subscriptions = subscriptions
        self._configs = configs

    async def describe(
        self, request: DescribeSubscriptionsRequest, _context: RequestContext
    ) -> DescribeSubscriptionsResponse:
        response = DescribeSubscriptionsResponse()
        for topic in request.topics:
            topic_response = DescribeSubscriptionsTopicResponse(name=topic.name)
            response.topics.append(topic_response)
            for index in topic.partitions:
                result = DescribeSubscriptionsPartitionResponse(partition_index=index)
                topic_response.partitions.append(result)
                with ReportErrors(result):
                    result.subscriptions = await self._describe(topic.name, index, request.subscriptions)
        return response

    async def alter(self, request: AlterSubscriptionsRequest, _context: RequestContext) -> AlterSubscriptionsResponse:
        check_group_id(request.subscription)
        # A share group with a longer name can have offsets here, which must be deleted with the group.
        if request.action == _CREATE and len(request.subscription) > NAME_LENGTH_MAX:
            raise InvalidRequest(f"the name of a subscription can have at most {NAME_LENGTH_MAX} characters")
        if request.action not in (_CREATE, _SEEK, _DELETE):
            raise InvalidRequest(f"unknown action {request.action}; use 0 (create), 1 (seek) or 2 (delete)")
        response = AlterSubscriptionsResponse()
        for topic in request.topics:
            topic_response = AlterSubscriptionsTopicResponse(name=topic.name)
            response.topics.append(topic_response)
            config_error = await self._delete_config(topic.name, request)
            for requested in topic.partitions:
                result = AlterSubscriptionsPartitionResponse(partition_index=requested.partition_index)
                topic_response.partitions.append(result)
                with ReportErrors(result):
                    if config_error is not None:
                        raise config_error
                    result.floor = await self._alter(topic.name, requested, request)
        return response

    async def _delete_config(self, topic: str, request: AlterSubscriptionsRequest) -> HeadraceError | None:
        """Delete the configuration before the subscription. If the broker stops in between, the subscription is left
        with defaults and can be deleted again; in the reverse order, a new subscription would inherit the old
        configuration."""
        if request.action == _DELETE:
            try:
                await self._configs.remove(topic, request.subscription)
            except HeadraceError as error:
                return error
        return None

    async def status(self, request: MessageStatusRequest, _context: RequestContext) -> MessageStatusResponse:
        if len(request.offsets) > OFFSETS_MAX:
            raise InvalidRequest(f"a request can ask for at most {OFFSETS_MAX} messages, not {len(request.offsets)}")
        shard = await self._subscriptions.when_loaded(request.topic, request.partition_index)
        return MessageStatusResponse(statuses=[] if shard is None else await _statuses(shard, request))

    async def _describe(self, topic: str, index: int, names: Sequence[str] | None) -> list[DescribedSubscription]:
        shard = await self._subscriptions.when_loaded(topic, index)
        if shard is None:
            return []
        return [
            DescribedSubscription(
                name,
                floor,
                end,
                counts.backlog,
                counts.leased,
                counts.waiting,
                counts.dying,
                await _timestamp_at(shard.source(), floor, end) if counts.backlog else _UNSET,
            )
            for name, floor, end, counts in shard.describe(names)
        ]

    async def _alter(
        self, topic: str, requested: AlterSubscriptionsPartition, request: AlterSubscriptionsRequest
    ) -> int:
        """Create, move or delete the subscription; return its ack floor."""
        subscriptions, name = self._subscriptions, request.subscription
        if request.action == _CREATE:
            shard = await subscriptions.ensure(topic, requested.partition_index)
        else:
            await subscriptions.when_loaded(topic, requested.partition_index)
            shard = subscriptions.of(topic, requested.partition_index)
        partition = shard.source()
        if request.action != _CREATE:
            shard.find(name)
        if request.action == _DELETE:
            await _wait_until_durable(shard.delete(name))
            return _UNSET
        floor = await _requested_ack_floor(partition, shard.config_of(name), requested)
        shard.source()
        await _wait_until_durable(shard.create(name, floor) if request.action == _CREATE else shard.seek(name, floor))
        return shard.find(name).floor


async def _wait_until_durable(wait: asyncio.Future[None] | None) -> None:
    if wait is not None:
        await wait


async def _requested_ack_floor(
    partition: Partition, config: SubscriptionConfig, requested: AlterSubscriptionsPartition
) -> int:
    if requested.timestamp_ms != _UNSET:
        return await offset_for_timestamp(partition, config, requested.timestamp_ms)
    if requested.offset == _EARLIEST:
        return partition.log.start_offset
    if requested.offset == _LATEST:
        return deliverable_end(partition, config)
    if requested.offset <= partition.epoch_start:
        partition.ensure_committed(requested.offset - 1)
    if not partition.log.start_offset <= requested.offset <= partition.high_watermark:
        raise OffsetOutOfRange(
            f"offset {requested.offset} is not between {partition.log.start_offset} and {partition.high_watermark}"
        )
    return requested.offset


async def _timestamp_at(partition: Partition, offset: int, end_offset: int) -> int:
    """Return the timestamp of the first message at or after an offset."""
    data, _ = await read_batches(partition, offset, end_offset, _ONE_BATCH)
    for batch, header in split_batches(data):
        for record in read_records(batch, header, _UNPACKED_BYTES_MAX):
            if record.offset >= offset:
                return record.timestamp_ms
    return _UNSET


async def _statuses(shard: SubscriptionShard, request: MessageStatusRequest) -> list[SubscriptionStatus]:
    partition = shard.source()
    end_offset = partition.high_watermark
    for offset in request.offsets:
        if offset < partition.epoch_start:
            partition.ensure_committed(offset)
        if not 0 <= offset < end_offset:
            raise OffsetOutOfRange(f"message {offset} does not exist yet: the partition ends at {end_offset}")
    history = await shard.acks.history(request.offsets) if request.with_history else {}
    shard.source()
    statuses = [
        _status(offset, name, shard.find(name).state_of(offset), history.get((name, offset)))
        for offset in request.offsets
        for name in (shard.subscriptions if request.subscriptions is None else request.subscriptions)
        if name in shard.subscriptions
    ]
    await _wait_until_durable(shard.acks.committed())  # before that, the statuses may be lost
    return statuses


def _status(offset: int, name: str, delivery_state: DeliveryState, last: MessageEvent | None) -> SubscriptionStatus:
    from headrace.wire.state_records.acks_records import Settled  # imported on first use: keeps startup fast

    settled = last.event if last is not None and isinstance(last.event, Settled) else None
    return SubscriptionStatus(
        offset=offset,
        subscription=name,
        state=delivery_state.state,
        attempts=delivery_state.attempts if last is None or settled is None else last.attempts,
        how=None if settled is None else settled.how,
        at_ms=_UNSET if last is None else last.event.at,
        until_ms=_UNSET if delivery_state.until_ms is None else delivery_state.until_ms,
        member=delivery_state.member or None,
        reason=delivery_state.reason or None,
    )


class PushRequests:
    """The response is cached until a configuration changes: every pusher polls it."""

    def __init__(self, configs: SubscriptionConfigs) -> None:
        self._configs = configs
        self._response: DescribePushesResponse | None = None
        configs.on_changed.append(self._invalidate)

    async def describe(self, request: DescribePushesRequest, _context: RequestContext) -> DescribePushesResponse:
        if self._response is None:
            self._response = self._build_response()
        if request.version == self._response.version:
            return DescribePushesResponse(version=request.version)
        return self._response

    def _invalidate(self, _name: str) -> None:
        self._response = None

    def _build_response(self) -> DescribePushesResponse:
        from hashlib import blake2b  # imported only if push is used

        pushes = [
            DescribedPush(
                subscription=name,
                url=config.headrace_push_url,
                secret=config.headrace_push_secret,
                concurrency=config.headrace_push_concurrency,
                rate=config.headrace_push_rate,
                timeout_ms=config.headrace_push_timeout_ms,
                backoff_ms=config.headrace_retry_backoff_ms,
                topics=[*topics],
            )
            for name, topics, config in self._configs.pushes()
        ]
        version = blake2b(repr(pushes).encode(), digest_size=_VERSION_BYTES).hexdigest()
        return DescribePushesResponse(version=version, is_changed=True, pushes=pushes)
