"""How a stream learns that its messages were settled by other requests than its own.

Whoever settles in the same process says so (`FeedRegistry.settled`). What is settled elsewhere, or has lost its lease,
is found by asking the brokers: every second, and more often while the receiver has used up more than half of its
credit. They are asked about a sample first, of the oldest messages and of others in turn, and about the rest only if a
message of the sample is gone. So a stream that holds many messages and settles none costs the brokers no more than a
small one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt
from headrace.client.queues.message_status import message_statuses
from headrace.model.errors import HeadraceError
from headrace.push.feed import Feed

_POLL_FIRST_SECONDS = 0.05
_POLL_MAX_SECONDS = 1.0
_STATUSES_MAX = 1000  # that a broker tells at once
_SAMPLE_HALF = 50  # the oldest messages, and as many others
_LEASED = "leased"


class FeedRegistry:
    """The feeds of this process, by member: a receipt says whose it is."""

    def __init__(self) -> None:
        self._by_member: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._by_member)

    def add(self, feed: Feed) -> None:
        self._by_member[feed.member] = feed

    def remove(self, feed: Feed) -> None:
        self._by_member.pop(feed.member, None)

    def settled(self, receipts: Iterable[LeaseReceipt]) -> None:
        """These were acked, nacked or rejected by a request of its own."""
        for receipt in receipts:
            feed = self._by_member.get(receipt.member)
            if feed is not None:
                feed.forget([receipt])


async def forget_foreign_settlements(cluster: Cluster, feed: Feed) -> None:
    """Let the feed forget what is not its own any more; runs until it is cancelled."""
    pause = _POLL_FIRST_SECONDS
    round_number = 0
    while True:
        await asyncio.sleep(pause)
        gone: list[LeaseReceipt] = []
        held = feed.held
        if held:
            sample, others = _split_sample(held, round_number)
            round_number += 1
            with suppress(HeadraceError):  # whoever leads the partition next is asked the next time
                gone = await _lost_receipts(cluster, feed, sample)
                if gone and others:
                    gone += await _lost_receipts(cluster, feed, others)
        if gone:
            feed.forget(gone)
        is_short = feed.in_flight * 2 > feed.credit
        if is_short and gone:
            pause = _POLL_FIRST_SECONDS
        else:
            pause = min(pause * 2, _POLL_MAX_SECONDS) if is_short else _POLL_MAX_SECONDS


def _split_sample(
    held: Sequence[LeasedMessage], round_number: int
) -> tuple[Sequence[LeasedMessage], Sequence[LeasedMessage]]:
    """Those to ask about first, and the others. Every message is in the sample of some turn."""
    if len(held) <= 2 * _SAMPLE_HALF:
        return held, ()
    oldest, newer = held[:_SAMPLE_HALF], held[_SAMPLE_HALF:]
    start = round_number * _SAMPLE_HALF % len(newer)
    end = start + _SAMPLE_HALF
    return (*oldest, *newer[start:end]), (*newer[:start], *newer[end:])


async def _lost_receipts(cluster: Cluster, feed: Feed, messages: Iterable[LeasedMessage]) -> list[LeaseReceipt]:
    by_partition: dict[TopicPartition, dict[int, LeaseReceipt]] = defaultdict(dict)
    for message in messages:
        by_partition[TopicPartition(message.id.topic, message.id.partition)][message.id.offset] = message.receipt
    gone: list[LeaseReceipt] = []
    for target, receipts in by_partition.items():
        offsets = list(receipts)
        for at in range(0, len(offsets), _STATUSES_MAX):
            some = offsets[at : at + _STATUSES_MAX]
            for status in await message_statuses(cluster, target, some, [feed.subscription]):
                ours = (_LEASED, feed.member, receipts[status.offset].attempt)
                if (status.state, status.member, status.attempts) != ours:
                    gone.append(receipts[status.offset])
    return gone
