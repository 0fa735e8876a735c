"""LeaseOffsets: lease messages of a subscription that the client selects by offset, without reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.handlers import RequestContext
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.queues.subscription_requests import check_lease_ms, check_names
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.wire.messages.queues import LeasedRange, LeaseOffsetsRequest, LeaseOffsetsResponse

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard
    from headrace.machines.queues.subscription_values import Range

RANGES_MAX = 10_000
_UNSET = -1
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
