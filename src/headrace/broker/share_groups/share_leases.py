"""The sessions and leases of share group members on this broker.

A session is bound to the connection that opened it. When the session or its connection is closed, the leases of its
member are released at once, as failed deliveries: one of these messages may have caused the failure of the member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.handlers import RequestContext
from headrace.broker.queues.lease_poll import LeasePoll
from headrace.broker.queues.leases import ExtendLease, RangeSettlement
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.topic import Topic
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.queues.subscription_values import Ack, Nack, OffsetGap, Reject, Settlement
from headrace.machines.share_groups.share_sessions import PartitionKey, ShareSession, ShareSessions
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    HeadraceError,
    InvalidRecordState,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    RequestTimedOut,
    UnknownTopicId,
)
from headrace.wire.messages.share_groups import AcknowledgementBatch

log = logging.getLogger(__name__)

SETTLEMENTS_MAX = 20_000  # per partition and request: takes some ten milliseconds
_RENEW = 4
_SETTLEMENTS: dict[int, Settlement | ExtendLease] = {
    0: OffsetGap(),
    1: Ack(),
    2: Nack(reason="released"),
    3: Reject("rejected"),
    _RENEW: ExtendLease(),
}


_RETRIABLE = (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotEnoughReplicas,
    OffsetNotAvailable,
    RequestTimedOut,
)


def as_share_error(error: HeadraceError) -> HeadraceError:
    """Map an error to one that share consumers know: every retriable error becomes `NotLeader`, which they retry."""
    return NotLeader(error.message) if isinstance(error, _RETRIABLE) else error


class AcknowledgeResult(NamedTuple):
    """The first error, or None, and the future to await until the other settlements are committed."""

    error: HeadraceError | None
    wait: asyncio.Future[None] | None

    async def committed(self) -> HeadraceError | None:
        """Wait until the settlements are committed; return the error for the response."""
        try:
            if self.wait is not None:
                await self.wait
        except HeadraceError as error:
            return as_share_error(error)
        return None if self.error is None else as_share_error(self.error)


class ShareLeases:
    def __init__(
        self,
        catalogue: Catalogue,
        subscriptions: SubscriptionCoordinator,
        group_configs: GroupConfigs,
        configs: SubscriptionConfigs,
    ) -> None:
        self.sessions = ShareSessions()
        self.subscriptions = subscriptions
        self._catalogue = catalogue
        self._group_configs = group_configs
        self._configs = configs
        self._polls: dict[tuple[str, str], LeasePoll] = {}  # by group and member

    def lock_ms(self, group_id: str) -> int:
        return self._group_configs.of(group_id).share_record_lock_duration_ms

    def topic(self, key: PartitionKey) -> Topic:
        topic = self._catalogue.find_by_id(key[0])
        if topic is None:
            raise UnknownTopicId(f"topic id {key[0]} does not exist")
        return topic

    # Sessions

    def bind(self, session: ShareSession, context: RequestContext) -> None:
        """End the session when this connection is closed."""
        context.when_closed((session.group_id, session.member_id), partial(self._lost, session))

    def end(self, session: ShareSession) -> None:
        """End the session and release the leases of its member."""
        self.sessions.end(session)
        self.stop_waiting(session)
        for key in session.touched:
            try:
                shard = self.subscriptions.find(self.topic(key).name, key[1])
                if shard is not None:
                    shard.release_member(session.group_id, session.member_id)
            except HeadraceError as error:
                # A new leader has none of these leases; otherwise they expire.
                log.debug("releasing leases failed member=%s error=%s", session.member_id, error)

    async def wait(
        self, session: ShareSession, poll: LeasePoll, count_max: int, bytes_max: int, seconds: float
    ) -> None:
        key = session.group_id, session.member_id
        self._polls[key] = poll
        try:
            await poll.run(count_max, bytes_max, seconds)
        finally:
            if self._polls.get(key) is poll:
                del self._polls[key]

    def stop_waiting(self, session: ShareSession) -> None:
        """End a waiting fetch of the member, because the response to its new request must wait for that one."""
        poll = self._polls.get((session.group_id, session.member_id))
        if poll is not None:
            poll.stop()

    def stop(self) -> None:
        """End all waiting fetches, because the broker is shutting down."""
        for poll in self._polls.values():
            poll.stop()

    def _lost(self, session: ShareSession) -> None:
        if self.sessions.is_present(session):
            self.end(session)

    # Settle

    def settle(
        self, session: ShareSession, key: PartitionKey, batches: Sequence[AcknowledgementBatch], *, renews: bool
    ) -> AcknowledgeResult:
        """Settle messages. All settlements are applied when this returns."""
        try:
            settlements = list(islice(_range_settlements(batches, renews=renews), SETTLEMENTS_MAX + 1))
            if len(settlements) > SETTLEMENTS_MAX:
                raise InvalidRequest(
                    f"the acknowledgement type of a partition can change at most {SETTLEMENTS_MAX} times per request"
                )
            if renews and not self._configs.of(key[0], session.group_id).share_renew_acknowledge_enable:
                raise InvalidRecordState(
                    f"group {session.group_id} does not allow renewal of leases (share.renew.acknowledge.enable)"
                )
            shard = self.subscriptions.of(self.topic(key).name, key[1])
            errors, wait = shard.settle(session.group_id, session.member_id, settlements)
        except GroupIdNotFound as error:  # so no message is leased
            return AcknowledgeResult(InvalidRecordState(error.message), None)
        except HeadraceError as error:
            return AcknowledgeResult(error, None)
        return AcknowledgeResult(next((error for error in errors if error is not None), None), wait)


def _range_settlements(batches: Sequence[AcknowledgementBatch], *, renews: bool) -> Iterator[RangeSettlement]:
    """Convert batches, which must ascend. A batch has one type for all its offsets, or one for each."""
    end_offset = 0
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not end_offset <= first <= last:
            raise InvalidRequest(f"offsets {first} to {last} are not after {end_offset}")
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"{len(types)} acknowledgement types do not match {last - first + 1} offsets")
        end_offset = last + 1
        if len(types) == 1:
            yield RangeSettlement(first, last, _settlement(types[0], renews=renews))
            continue
        for type_, run in groupby(types):
            count = sum(1 for _ in run)
            yield RangeSettlement(first, first + count - 1, _settlement(type_, renews=renews))
            first += count


def _settlement(type_: int, *, renews: bool) -> Settlement | ExtendLease:
    how = _SETTLEMENTS.get(type_)
    if how is None or (type_ == _RENEW and not renews):
        raise InvalidRequest(f"acknowledgement type {type_} is not supported")
    return how
