"""Redrive: deliver settled messages of one subscription again, because they became dead letters.

- The message is not published again. It must still be in the log; only its state in this subscription changes, by an
  event of the acks log. Its delivery attempts start anew.
- A message that is not settled stays as it is, as does one that was redriven as many times as requested: the response
  to an earlier request may have been lost.
- A request is for one topic id: the name may belong to another topic by the time that the leader gets it.
- With `retention.mode=acked`, replicas delete what every subscription has settled. Each replica does that by itself and
  a little later, so such a message cannot be redriven although this leader may still have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.handlers import RequestContext
from headrace.broker.queues.dead_letters import read_message
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import GroupIdNotFound, InvalidRecordState, InvalidRequest, UnknownTopicId
from headrace.model.topic_configs import ACKED
from headrace.wire.messages.queues import (
    FailedSettleItem,
    RedriveItem,
    RedriveMessagesRequest,
    RedriveMessagesResponse,
)

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard
    from headrace.machines.queues.subscription_values import ClassifiedMessage

ITEMS_MAX = 1000  # per RedriveMessages


class RedriveRequests:
    def __init__(self, subscriptions: SubscriptionCoordinator, catalogue: Catalogue) -> None:
        self._subscriptions = subscriptions
        self._catalogue = catalogue

    async def redrive(self, request: RedriveMessagesRequest, _context: RequestContext) -> RedriveMessagesResponse:
        _check(request)
        topic, index = request.topic, request.partition_index
        self._check_topic(topic, request.topic_id)
        shard = await self._subscriptions.when_loaded(topic, index)
        if shard is None or not shard.has(request.subscription):
            raise GroupIdNotFound(f"topic {topic} has no subscription {request.subscription}")
        found = {item.offset: await _read(shard, request.subscription, item.offset) for item in request.items}
        # From here on nothing waits: a message that is acked meanwhile must not be delivered again.
        self._check_topic(topic, request.topic_id)
        errors = [_obstacle(shard, request.subscription, item, found[item.offset]) for item in request.items]
        refused = {position: error for position, error in enumerate(errors) if error is not None}
        messages = [
            (item.offset, item.redriven) for item, error in zip(request.items, errors, strict=True) if error is None
        ]
        wait = shard.redrive(request.subscription, messages)
        if wait is not None:
            await wait
        return RedriveMessagesResponse(
            refused=[FailedSettleItem(position, error.code, error.message) for position, error in refused.items()]
        )

    def _check_topic(self, name: str, topic_id: UUID) -> None:
        if self._catalogue.topic(name).id != topic_id:
            raise UnknownTopicId(f"topic {name} was deleted, or created again")


async def _read(shard: SubscriptionShard, name: str, offset: int) -> ClassifiedMessage | None:
    """Return the message, or None if the log does not have it. The log may have lost its end since the dead letter was
    written."""
    from headrace.broker.queues.lease_reader import MessageClassifier  # imported on first use: keeps startup fast

    partition = shard.source()
    found = None if offset >= partition.log.end_offset else await read_message(partition, offset)
    return None if found is None else MessageClassifier(shard.find(name).config).classify_record(found[0])


def _obstacle(
    shard: SubscriptionShard, name: str, item: RedriveItem, message: ClassifiedMessage | None
) -> InvalidRecordState | None:
    """Return why a message cannot be delivered again, or None. `message` is None if the log does not have it."""
    partition, subscription, offset = shard.source(), shard.find(name), item.offset
    if subscription.has_redriven(offset, item.redriven):
        return None
    are_deleted = partition.config.retention_mode == ACKED
    is_deleted = are_deleted and all(one.is_settled(offset) for one in shard.subscriptions.values())
    if message is None or is_deleted or offset < partition.log.start_offset:
        return InvalidRecordState(f"topic {partition.topic} no longer keeps message {offset}")
    state = subscription.state_of(offset).state
    if state == "dying":
        return InvalidRecordState(f"message {offset} is just becoming a dead letter; retry")
    if state != "settled":
        return None
    if not message.matches:
        return InvalidRecordState(f"message {offset} does not match the filter of subscription {name}")
    if message.expires_ms is not None and message.expires_ms <= shard.now_ms():
        return InvalidRecordState(f"message {offset} has expired")
    return None


def _check(request: RedriveMessagesRequest) -> None:
    if not 1 <= len(request.items) <= ITEMS_MAX:
        raise InvalidRequest(f"a request must redrive 1 to {ITEMS_MAX} messages, not {len(request.items)}")
    for item in request.items:
        if item.offset < 0 or item.redriven < 1:
            raise InvalidRequest(f"cannot redrive message {item.offset} for the {item.redriven}th time")
