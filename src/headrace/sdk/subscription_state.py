"""What a client returns about a subscription: its backlog, and messages that it peeks at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headrace.client.admin.subscription_admin import PartitionBacklog, PeekedRecord
from headrace.model.ids import MessageId
from headrace.sdk.incoming import Received
from headrace.sdk.times import time_of


class Backlog(msgspec.Struct, frozen=True):
    """The number of unsettled `messages` of a subscription. Of these, `leased` are being processed, `waiting` will be
    delivered again later, and `dying` are becoming dead letters. `oldest_at`: when the oldest one was published."""

    messages: int
    leased: int
    waiting: int
    dying: int
    oldest_at: datetime | None


class PeekedMessage(Received):
    """A message that was read without being leased. `state`: ready, leased, waiting or dying."""

    __slots__ = ("attempts", "state")

    def __init__(self, peeked: PeekedRecord) -> None:
        record = peeked.record
        message_id = MessageId(record.topic, record.partition, record.offset)
        super().__init__(message_id, record.timestamp_ms, record.key, record.value, record.headers)
        self.state = peeked.status.state
        self.attempts = peeked.status.attempts


def total_backlog(partitions: Sequence[PartitionBacklog]) -> Backlog:
    oldest = [one.oldest_ms for one in partitions if one.oldest_ms is not None]
    return Backlog(
        messages=sum(one.backlog for one in partitions),
        leased=sum(one.leased for one in partitions),
        waiting=sum(one.waiting for one in partitions),
        dying=sum(one.dying for one in partitions),
        oldest_at=time_of(min(oldest)) if oldest else None,
    )
