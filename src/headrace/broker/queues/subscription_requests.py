"""Lease, LeaseOffsets and Settle: members lease messages of a subscription and settle them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.queues.lease_poll import ExtendLease, LeaseLimits, LeasePoll, LeaseTarget, RangeSettlement
from headrace.broker.queues.subscriptions import SubscriptionCoordinator
from headrace.broker.request_context import RequestContext
from headrace.machines.queues.subscription_values import Ack, Nack, OffsetGap, Reject, Release, Settlement
from headrace.model.errors import HeadraceError, InvalidRecordState, InvalidRequest
from headrace.model.names import check_group_id
from headrace.model.subscription_configs import HOUR_MS
from headrace.runtime.clock import Clock
from headrace.wire.messages.queues import (
    LeasedRange,
    LeasePartitionAnswer,
    LeaseRequest,
    LeaseResponse,
    LeaseTopicAnswer,
    RefusedItem,
    SettleItem,
    SettlePartition,
    SettlePartitionAnswer,
    SettleRequest,
    SettleResponse,
    SettleTopicAnswer,
)

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.wire.messages.queues import LeaseOffsetsRequest, LeaseOffsetsResponse

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard
    from headrace.machines.queues.subscription_values import Range


# Lease and Settle: how members of a subscription take messages and say what became of them.
#
# A lease looks at its partitions, beginning with another one each time, so that a full one does not starve the others. It
# answers when it has something or anything is wrong, and otherwise waits until a partition has something or `max_wait_ms`
# is over. A settle does all its items in one step and answers when they are committed.
#
# A Lease of 0 messages says that the member leaves. Its Leases that wait are answered, and one that arrives later gets
# nothing: else a Lease that is still on its way would take what the member gives back, and hold it until it times out.


MESSAGES_MAX = 10_000  # of one lease
BYTES_MAX = 16 << 20  # of one lease: what lies in several places is joined in memory
ITEMS_MAX = 10_000  # of one settle
PARTITIONS_MAX = 10_000
MEMBERS_LEFT_MAX = 10_000  # whose late Leases are recognized
NAME_LENGTH_MAX = 255
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * HOUR_MS  # as of share.record.lock.duration.ms
DELAY_MS_MAX = 365 * 24 * HOUR_MS
REASON_LENGTH_MAX = 1000
_UNSET = -1
_GAP, _ACK, _NACK, _REJECT, _EXTEND, _RELEASE = range(6)
_ACKED = Ack()


class SubscriptionRequests:
    def __init__(self, subscriptions: SubscriptionCoordinator, clock: Clock) -> None:
        self._subscriptions = subscriptions
        self._clock = clock
        self._turn = 0
        self._polls: dict[tuple[str, str], set[LeasePoll]] = {}  # that wait, by subscription and member
        self._left: dict[tuple[str, str], None] = {}  # oldest first

    async def lease(self, request: LeaseRequest, _context: RequestContext) -> LeaseResponse:
        try:
            _check_lease(request)
        except HeadraceError as error:
            return LeaseResponse(error_code=error.code, error_message=error.message)
        member = request.subscription, request.member
        if not request.max_messages:
            self._leave(member)
        if member in self._left:
            return LeaseResponse()
        places = [(topic.name, index) for topic in request.topics for index in topic.partitions]
        self._turn += 1
        start = self._turn % len(places)
        lease_ms = None if request.lease_ms == _UNSET else request.lease_ms
        poll = LeasePoll(
            self._subscriptions,
            self._clock,
            request.subscription,
            request.member,
            [*places[start:], *places[:start]],
            lease_ms,
            must_exist=request.must_exist,
        )
        bytes_max = min(request.max_bytes, BYTES_MAX)
        polls = self._polls.setdefault(member, set())
        polls.add(poll)
        try:
            await poll.run(LeaseLimits(request.max_messages, bytes_max, request.max_wait_ms / 1000))
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

    async def settle(self, request: SettleRequest, _context: RequestContext) -> SettleResponse:
        try:
            _check_settle(request)
        except HeadraceError as error:
            return SettleResponse(error_code=error.code, error_message=error.message)
        response = SettleResponse()
        waits: list[tuple[SettlePartitionAnswer, asyncio.Future[None]]] = []
        for topic in request.topics:
            answers = SettleTopicAnswer(name=topic.name)
            response.topics.append(answers)
            for requested in topic.partitions:
                answer = SettlePartitionAnswer(partition_index=requested.partition_index)
                answers.partitions.append(answer)
                try:
                    shard = self._subscriptions.of(topic.name, requested.partition_index)
                    wait = _settle_partition(shard, request, requested, answer)
                except HeadraceError as error:
                    answer.error_code, answer.error_message = error.code, error.message
                else:
                    if wait is not None:
                        waits.append((answer, wait))
        for answer, wait in waits:
            try:
                await wait
            except HeadraceError as error:
                answer.error_code, answer.error_message = error.code, error.message
        return response


def _lease_response(targets: Iterable[LeaseTarget]) -> LeaseResponse:
    response = LeaseResponse()
    topics: dict[str, LeaseTopicAnswer] = {}
    for target in targets:
        answer = LeasePartitionAnswer(partition_index=target.index, records=b"")
        if target.leased is not None:
            granted, answer.records, answer.leased_until_ms, answer.lease_epoch = target.leased
            answer.leased = [LeasedRange(first, last, attempt) for first, last, attempt in granted]
        elif target.error is not None:
            answer.error_code, answer.error_message = target.error.code, target.error.message
        else:
            continue
        topic = topics.get(target.topic)
        if topic is None:
            topic = topics[target.topic] = LeaseTopicAnswer(name=target.topic)
            response.topics.append(topic)
        topic.partitions.append(answer)
    return response


def _settle_partition(
    shard: SubscriptionShard, request: SettleRequest, requested: SettlePartition, answer: SettlePartitionAnswer
) -> asyncio.Future[None] | None:
    is_by_id = not request.member and requested.lease_epoch == _UNSET
    if requested.lease_epoch != shard.epoch and not is_by_id:
        raise InvalidRecordState(
            f"the lease of leader epoch {requested.lease_epoch} has ended; the current epoch is {shard.epoch}"
        )
    settlements: list[RangeSettlement] = []
    indexes: Sequence[int] = range(len(requested.items))
    for index, item in enumerate(requested.items):
        try:
            settlements.append(_range_settlement(item))
        except HeadraceError as error:
            answer.refused.append(RefusedItem(index, error.code, error.message))
    if answer.refused:
        malformed = {refused.index for refused in answer.refused}
        indexes = [index for index in indexes if index not in malformed]
    errors, wait = shard.settle(request.subscription, request.member or None, settlements)
    if any(errors):
        for index, refusal in zip(indexes, errors, strict=True):
            if refusal is not None:
                answer.refused.append(RefusedItem(index, refusal.code, refusal.message))
    return wait


def _range_settlement(item: SettleItem) -> RangeSettlement:
    attempt = None if item.attempt == _UNSET else item.attempt
    if not 0 <= item.first <= item.last:
        raise InvalidRequest(f"{item.first} to {item.last} is not an offset range")
    if item.how == _ACK:
        return RangeSettlement(item.first, item.last, _ACKED, attempt)
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
    elif item.how == _GAP:
        how = OffsetGap()
    elif item.how == _RELEASE:
        how = Release()
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


def _check_lease(request: LeaseRequest) -> None:
    check_names(request.subscription, request.member)
    check_lease_ms(request.lease_ms)
    if not 0 <= request.max_messages <= MESSAGES_MAX:
        raise InvalidRequest(f"a lease request can ask for at most {MESSAGES_MAX} messages, not {request.max_messages}")
    if request.max_bytes < 1:
        raise InvalidRequest(f"max_bytes must be at least 1, not {request.max_bytes}")
    named = [(topic.name, index) for topic in request.topics for index in topic.partitions]
    if not 1 <= len(named) <= PARTITIONS_MAX or len(set(named)) < len(named):
        raise InvalidRequest(f"a lease request must have 1 to {PARTITIONS_MAX} distinct partitions")


def _check_settle(request: SettleRequest) -> None:
    _check_names(request.subscription, request.member)
    count = 0
    for topic in request.topics:
        for requested in topic.partitions:
            count += len(requested.items)
    if count > ITEMS_MAX:
        raise InvalidRequest(f"a settle request can have at most {ITEMS_MAX} items, not {count}")


# LeaseOffsets: lease messages of a subscription that the client selects by offset, without reading them.


RANGES_MAX = 10_000
_ANY_NUMBER = 1 << 62


class LeaseOffsetsHandler:
    """`now_ms` is the time by which leases end."""

    def __init__(self, subscriptions: SubscriptionCoordinator, now_ms: Callable[[], int]) -> None:
        self._subscriptions = subscriptions
        self._now_ms = now_ms

    async def handle(self, request: LeaseOffsetsRequest, _context: RequestContext) -> LeaseOffsetsResponse:
        try:
            check_names(request.subscription, request.member)
            check_lease_ms(request.lease_ms)
            wanted = _check_ranges([(one.first, one.last) for one in request.wanted])
            shard = await self._subscriptions.ensure(request.topic, request.partition_index)
            if not shard.has(request.subscription):
                await shard.ensure(request.subscription)
            return self._lease(shard, request, wanted)
        except HeadraceError as error:
            return LeaseOffsetsResponse(error_code=error.code, error_message=error.message)

    def _lease(
        self, shard: SubscriptionShard, request: LeaseOffsetsRequest, wanted: Sequence[tuple[int, int]]
    ) -> LeaseOffsetsResponse:
        from headrace.broker.queues.start_position import readable_end  # not before the first subscription

        partition = shard.leasable_partition()
        subscription = shard.find(request.subscription)
        if subscription.config.opens_messages:
            raise InvalidRequest(
                f"subscription {request.subscription} selects messages by their contents, so they cannot be leased by "
                "offset"
            )
        shard.catch_up(request.subscription, subscription, partition)
        now_ms = self._now_ms()
        free = subscription.choose(now_ms, _ANY_NUMBER, readable_end(partition, subscription.config))
        lease_ms = None if request.lease_ms == _UNSET else request.lease_ms
        granted = subscription.grant(_intersect(free, wanted), request.member, now_ms, lease_ms)
        shard.update_timer(request.subscription, subscription)
        return LeaseOffsetsResponse(
            lease_epoch=shard.epoch,
            leased_until_ms=now_ms + (lease_ms or subscription.config.share_record_lock_duration_ms),
            leased=[LeasedRange(first, last, attempt) for first, last, attempt in granted],
        )


def _check_ranges(wanted: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    if not 1 <= len(wanted) <= RANGES_MAX:
        raise InvalidRequest(f"a lease request must have 1 to {RANGES_MAX} offset ranges, not {len(wanted)}")
    behind = 0
    for first, last in wanted:
        if not behind <= first <= last:
            raise InvalidRequest(f"{first} to {last} is not an offset range, or not after the previous one")
        behind = last + 1
    return wanted


def _intersect(free: Sequence[Range], wanted: Sequence[tuple[int, int]]) -> list[Range]:
    """What is in both; both are ascending."""
    from headrace.machines.queues.subscription_values import Range  # not before the first subscription

    found: list[Range] = []
    at = 0
    for first, last in wanted:
        while at < len(free) and free[at].last < first:
            at += 1
        behind = at
        while behind < len(free) and free[behind].first <= last:
            found.append(Range(max(first, free[behind].first), min(last, free[behind].last)))
            behind += 1
        at = max(at, behind - 1)
    return found
