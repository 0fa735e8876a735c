"""Lease, LeaseOffsets and Settle: members lease messages of a subscription and settle them.

- A Lease visits its partitions, beginning with a different one each time, so that a full partition does not starve the
  others. It responds when it has messages or an error; otherwise it waits until a partition has messages or
  `max_wait_ms` is over.
- A Lease of 0 messages means that the member leaves. Its waiting Leases end, and a Lease that arrives later gets
  nothing: otherwise a Lease that is still in flight would lease what the member releases, and hold it until it times
  out.
- LeaseOffsets leases messages that the client selects by offset, without reading them.
- A Settle applies all its items in one step, and responds when they are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.handlers import RequestContext, report_error
from headrace.broker.queues.lease_poll import LeasePoll, LeaseTarget
from headrace.broker.queues.leases import ExtendLease, RangeSettlement
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.machines.queues.subscription_values import Ack, Nack, OffsetGap, Reject, Release, Settlement
from headrace.model.configs import HOUR_MS
from headrace.model.errors import HeadraceError, InvalidRecordState, InvalidRequest
from headrace.model.names import check_group_id
from headrace.runtime.clock import Clock
from headrace.wire.messages.queues import (
    FailedSettleItem,
    LeasedRange,
    LeaseOffsetsRequest,
    LeaseOffsetsResponse,
    LeasePartitionResponse,
    LeaseRequest,
    LeaseResponse,
    LeaseTopicResponse,
    SettleItem,
    SettlePartition,
    SettlePartitionResponse,
    SettleRequest,
    SettleResponse,
    SettleTopicResponse,
)

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard

MESSAGES_MAX = 10_000  # per Lease
BYTES_MAX = 16 << 20  # per Lease: several pieces of a file are joined in memory
RANGES_MAX = 10_000  # per LeaseOffsets
ITEMS_MAX = 10_000  # per Settle
PARTITIONS_MAX = 10_000
MEMBERS_LEFT_MAX = 10_000  # whose late Leases are recognized
NAME_LENGTH_MAX = 255
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * HOUR_MS  # limits of share.record.lock.duration.ms
DELAY_MS_MAX = 365 * 24 * HOUR_MS
REASON_LENGTH_MAX = 1000
_UNSET = -1
_GAP, _ACK, _NACK, _REJECT, _EXTEND, _RELEASE = range(6)
_PLAIN_SETTLEMENTS: dict[int, Settlement] = {_GAP: OffsetGap(), _ACK: Ack(), _RELEASE: Release()}


class SubscriptionRequests:
    def __init__(self, subscriptions: SubscriptionCoordinator, clock: Clock) -> None:
        self._subscriptions = subscriptions
        self._clock = clock
        self._lease_count = 0
        self._polls: dict[tuple[str, str], set[LeasePoll]] = {}  # running, by subscription and member
        self._left: dict[tuple[str, str], None] = {}  # members, oldest first

    async def lease(self, request: LeaseRequest, _context: RequestContext) -> LeaseResponse:
        partitions = [(topic.name, index) for topic in request.topics for index in topic.partitions]
        try:
            _check_lease(request, partitions)
        except HeadraceError as error:
            return LeaseResponse(error_code=error.code, error_message=error.message)
        member = request.subscription, request.member
        if not request.max_messages:
            self._leave(member)
        if member in self._left:
            return LeaseResponse()
        self._lease_count += 1
        start = self._lease_count % len(partitions)
        lease_ms = None if request.lease_ms == _UNSET else request.lease_ms
        poll = LeasePoll(
            self._subscriptions,
            self._clock,
            request.subscription,
            request.member,
            [*partitions[start:], *partitions[:start]],
            lease_ms,
            must_exist=request.must_exist,
        )
        bytes_max = min(request.max_bytes, BYTES_MAX)
        polls = self._polls.setdefault(member, set())
        polls.add(poll)
        try:
            await poll.run(request.max_messages, bytes_max, request.max_wait_ms / 1000)
        finally:
            polls.discard(poll)
            if not polls:
                self._polls.pop(member, None)
        return _lease_response(poll.targets)

    def _leave(self, member: tuple[str, str]) -> None:
        self._left[member] = None
        if len(self._left) > MEMBERS_LEFT_MAX:
            del self._left[next(iter(self._left))]
        for poll in self._polls.get(member, ()):
            poll.stop()

    async def lease_offsets(self, request: LeaseOffsetsRequest, _context: RequestContext) -> LeaseOffsetsResponse:
        check_names(request.subscription, request.member)
        check_lease_ms(request.lease_ms)
        offsets = [(one.first, one.last) for one in request.wanted]
        _check_ranges(offsets)
        shard = await self._subscriptions.ensure(request.topic, request.partition_index)
        await shard.ensure(request.subscription)
        lease_ms = None if request.lease_ms == _UNSET else request.lease_ms
        granted, until_ms = shard.lease_offsets(request.subscription, request.member, offsets, lease_ms)
        return LeaseOffsetsResponse(
            lease_epoch=shard.epoch,
            leased_until_ms=until_ms,
            leased=[LeasedRange(first, last, attempt) for first, last, attempt in granted],
        )

    async def settle(self, request: SettleRequest, _context: RequestContext) -> SettleResponse:
        try:
            _check_settle(request)
        except HeadraceError as error:
            return SettleResponse(error_code=error.code, error_message=error.message)
        response = SettleResponse()
        waits: list[tuple[SettlePartitionResponse, asyncio.Future[None]]] = []
        for topic in request.topics:
            topic_response = SettleTopicResponse(name=topic.name)
            response.topics.append(topic_response)
            for requested in topic.partitions:
                result = SettlePartitionResponse(partition_index=requested.partition_index)
                topic_response.partitions.append(result)
                try:
                    shard = self._subscriptions.of(topic.name, requested.partition_index)
                    wait = _settle_partition(shard, request, requested, result)
                except HeadraceError as error:
                    report_error(result, error)
                else:
                    if wait is not None:
                        waits.append((result, wait))
        for result, wait in waits:
            try:
                await wait
            except HeadraceError as error:
                report_error(result, error)
        return response


def _lease_response(targets: Iterable[LeaseTarget]) -> LeaseResponse:
    topics: dict[str, LeaseTopicResponse] = {}
    for target in targets:
        result = LeasePartitionResponse(partition_index=target.index, records=b"")
        if target.leased is not None:
            granted, result.records, result.leased_until_ms, result.lease_epoch = target.leased
            result.leased = [LeasedRange(first, last, attempt) for first, last, attempt in granted]
        elif target.error is not None:
            report_error(result, target.error)
        else:
            continue
        topics.setdefault(target.topic, LeaseTopicResponse(name=target.topic)).partitions.append(result)
    return LeaseResponse(topics=list(topics.values()))


def _settle_partition(
    shard: SubscriptionShard, request: SettleRequest, requested: SettlePartition, result: SettlePartitionResponse
) -> asyncio.Future[None] | None:
    is_by_id = not request.member and requested.lease_epoch == _UNSET
    if requested.lease_epoch != shard.epoch and not is_by_id:
        shard.source()  # prefer `NotLeader`, which makes the client refresh its metadata
        raise InvalidRecordState(
            f"the lease of leader epoch {requested.lease_epoch} has ended; the current epoch is {shard.epoch}"
        )
    settlements: list[RangeSettlement] = []
    indexes: Sequence[int] = range(len(requested.items))
    for index, item in enumerate(requested.items):
        try:
            settlements.append(_range_settlement(item))
        except HeadraceError as error:
            result.refused.append(FailedSettleItem(index, error.code, error.message))
    if result.refused:
        malformed = {item.index for item in result.refused}
        indexes = [index for index in indexes if index not in malformed]
    errors, wait = shard.settle(request.subscription, request.member or None, settlements)
    if any(errors):
        for index, item_error in zip(indexes, errors, strict=True):
            if item_error is not None:
                result.refused.append(FailedSettleItem(index, item_error.code, item_error.message))
    return wait


def _range_settlement(item: SettleItem) -> RangeSettlement:
    attempt = None if item.attempt == _UNSET else item.attempt
    if not 0 <= item.first <= item.last:
        raise InvalidRequest(f"{item.first} to {item.last} is not an offset range")
    plain = _PLAIN_SETTLEMENTS.get(item.how)
    if plain is not None:
        return RangeSettlement(item.first, item.last, plain, attempt)
    how: Settlement | ExtendLease
    reason = (item.reason or "")[:REASON_LENGTH_MAX]
    if item.how == _NACK:
        if not _UNSET <= item.delay_ms <= DELAY_MS_MAX:
            raise InvalidRequest(f"the delay must be from 0 to {DELAY_MS_MAX} ms, not {item.delay_ms}")
        how = Nack(None if item.delay_ms == _UNSET else item.delay_ms, reason)
    elif item.how == _REJECT:
        how = Reject(reason)
    elif item.how == _EXTEND:
        check_lease_ms(item.lease_ms)
        how = ExtendLease(None if item.lease_ms == _UNSET else item.lease_ms)
    else:
        raise InvalidRequest(f"unknown settlement {item.how}; use 0 (gap) to 5 (release)")
    return RangeSettlement(item.first, item.last, how, attempt)


def check_lease_ms(lease_ms: int) -> None:
    if lease_ms != _UNSET and not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"the lease duration must be from {LEASE_MS_MIN} to {LEASE_MS_MAX} ms, not {lease_ms}")


def check_names(subscription: str, member: str) -> None:
    if not member:
        raise InvalidRequest("the member name is empty; it is required to settle leases")
    _check_names(subscription, member)


def _check_names(subscription: str, member: str) -> None:
    check_group_id(subscription)
    if max(len(subscription), len(member)) > NAME_LENGTH_MAX:
        raise InvalidRequest(f"names of subscriptions and members can have at most {NAME_LENGTH_MAX} characters")


def _check_lease(request: LeaseRequest, partitions: Collection[tuple[str, int]]) -> None:
    check_names(request.subscription, request.member)
    check_lease_ms(request.lease_ms)
    if not 0 <= request.max_messages <= MESSAGES_MAX:
        raise InvalidRequest(f"a lease request can ask for at most {MESSAGES_MAX} messages, not {request.max_messages}")
    if request.max_bytes < 1:
        raise InvalidRequest(f"max_bytes must be at least 1, not {request.max_bytes}")
    if not 1 <= len(partitions) <= PARTITIONS_MAX or len(set(partitions)) < len(partitions):
        raise InvalidRequest(f"a lease request must have 1 to {PARTITIONS_MAX} distinct partitions")


def _check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    if not 1 <= len(ranges) <= RANGES_MAX:
        raise InvalidRequest(f"a lease request must have 1 to {RANGES_MAX} offset ranges, not {len(ranges)}")
    end_offset = 0
    for first, last in ranges:
        if not end_offset <= first <= last:
            raise InvalidRequest(f"{first} to {last} is not an offset range, or not after the previous one")
        end_offset = last + 1


def _check_settle(request: SettleRequest) -> None:
    _check_names(request.subscription, request.member)
    count = sum(len(requested.items) for topic in request.topics for requested in topic.partitions)
    if count > ITEMS_MAX:
        raise InvalidRequest(f"a settle request can have at most {ITEMS_MAX} items, not {count}")
