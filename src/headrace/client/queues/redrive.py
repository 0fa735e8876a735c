"""Send dead letters back: lease single letters, redrive their messages, settle the letters.

- The settlement state of dead letters is that of the subscription `headrace-redrive` of the dead-letter topic.
- Each letter is leased by its offset, so that other letters are not touched: an unwanted lease would count as a
  delivery attempt. Letters that were leased and not redriven are released at once.
- A message is delivered again only to the subscription whose dead letter it is. It is not published again, so the log
  of the topic must still have it.
- Or a copy is published, which all subscriptions receive: to the original topic and partition, or to another topic,
  where its key selects the partition. Its timestamp is the current time, so that retention and expiry count from now.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.client.admin.config_requests import alter_configs
from headrace.client.admin.subscription_admin import START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Delivery, Producer
from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import ACK, NACK, message_status_request, message_statuses, settle
from headrace.model.errors import GroupIdNotFound, HeadraceError, InvalidRecords, MessageTooLarge
from headrace.model.ids import MessageId
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEAD_LETTER_HEADERS,
    DEDUP_ID,
    REDRIVEN,
    DeadLetterOrigin,
    Headers,
    dead_letter_origin,
    header_value,
    redrive_count_of,
    with_headers,
    without,
)
from headrace.model.names import DEAD_LETTER_SUFFIX
from headrace.model.subscription_configs import GROUP_RESOURCE
from headrace.runtime.clock import Clock
from headrace.wire.codec.schema import NULL_UUID
from headrace.wire.messages.queues import (
    LeaseOffsetsRange,
    LeaseOffsetsRequest,
    LeaseOffsetsResponse,
    MessageStatusResponse,
    RedriveItem,
    RedriveMessagesRequest,
    RedriveMessagesResponse,
    SettleItem,
)

REDRIVE_SUBSCRIPTION = "headrace-redrive"
READY = "ready"
_LEASED = "leased"

_DELIVERIES_MAX = "1000"  # the maximum: a letter must not be lost because it could not be redriven
_LEASE_MS = 5 * 60_000


class LeasedDeadLetters:
    """`receipts` by offset. In the end the offsets in `done` are acked and all others are released."""

    def __init__(self, receipts: Mapping[int, LeaseReceipt]) -> None:
        self.receipts = receipts
        self.done: set[int] = set()


class RedriveSubscription:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._admin = SubscriptionAdmin(cluster)
        self._member = f"redrive-{cluster.entropy.token(9)}"

    async def begin(self) -> Mapping[TopicPartition, int]:
        """Create the subscription where it is missing, from the first dead letter on; returns its ack floors."""
        limit = {"share.delivery.count.limit": _DELIVERIES_MAX}
        await alter_configs(self._cluster, (GROUP_RESOURCE, REDRIVE_SUBSCRIPTION), limit)
        return await self._admin.create(self._topic, REDRIVE_SUBSCRIPTION, Position(START))

    async def backlogs(self) -> Sequence[PartitionBacklog]:
        """The backlog of the subscription in the partitions that have it."""
        try:
            return await self._admin.describe(REDRIVE_SUBSCRIPTION, [self._topic])
        except GroupIdNotFound:
            return []

    async def states(self, target: TopicPartition, offsets: Sequence[int]) -> dict[int, str]:
        """The state of each letter; all are ready if the subscription does not exist."""
        try:
            statuses = await message_statuses(self._cluster, target, offsets, [REDRIVE_SUBSCRIPTION])
        except GroupIdNotFound:
            statuses = []
        return dict.fromkeys(offsets, READY) | {status.offset: status.state for status in statuses}

    @asynccontextmanager
    async def lease(self, target: TopicPartition, offsets: Collection[int]) -> AsyncIterator[LeasedDeadLetters]:
        """Lease those of the offsets that are neither settled nor leased by another member."""
        leased = await self._lease(target, offsets)
        try:
            yield leased
        finally:
            await self._settle(leased)

    async def _lease(self, target: TopicPartition, offsets: Collection[int]) -> LeasedDeadLetters:
        request = LeaseOffsetsRequest(
            subscription=REDRIVE_SUBSCRIPTION,
            member=self._member,
            topic=self._topic,
            partition_index=target.partition,
            lease_ms=_LEASE_MS,
            wanted=[LeaseOffsetsRange(offset, offset) for offset in sorted(offsets)],
        )

        async def attempt() -> LeasedDeadLetters:
            response: LeaseOffsetsResponse = await self._cluster.call_leader(target, request)
            raise_for_code(response.error_code, response.error_message)
            attempts = {offset: one.attempt for one in response.leased for offset in range(one.first, one.last + 1)}
            attempts |= await self._already_leased(target, [one for one in offsets if one not in attempts])
            return LeasedDeadLetters(
                {
                    offset: LeaseReceipt(MessageId(*target, offset), attempt, response.lease_epoch, self._member)
                    for offset, attempt in attempts.items()
                }
            )

        return await self._cluster.call_with_retries(attempt)

    async def _already_leased(self, target: TopicPartition, offsets: Sequence[int]) -> dict[int, int]:
        """The attempts of letters that an earlier request of this member has leased, whose response was lost. Otherwise
        they would be taken for letters that another redrive is handling. One attempt: a retry leases again, because a
        receipt needs the epoch of the present leader."""
        if not offsets:
            return {}
        request = message_status_request(target, offsets, [REDRIVE_SUBSCRIPTION])
        response: MessageStatusResponse = await self._cluster.call_leader(target, request)
        raise_for_code(response.error_code, response.error_message)
        return {
            one.offset: one.attempts for one in response.statuses if one.state == _LEASED and one.member == self._member
        }

    async def _settle(self, leased: LeasedDeadLetters) -> None:
        done = [receipt for offset, receipt in leased.receipts.items() if offset in leased.done]
        left = [receipt for offset, receipt in leased.receipts.items() if offset not in leased.done]
        refused = await settle(self._cluster, REDRIVE_SUBSCRIPTION, done, SettleItem(how=ACK))
        how = SettleItem(how=NACK, delay_ms=0, reason="it was not sent back")
        refused += await settle(self._cluster, REDRIVE_SUBSCRIPTION, left, how)
        for one in refused:
            raise one.error


MAX_REDRIVES = 3

_CHUNK_MAX = 100
_CHUNK_SECONDS = 5  # at a limited rate: a lease must not expire while its letters wait
_PUBLISH_INSTEAD = "a copy can be published for all subscriptions of the topic instead: --to-all, or to_all"


class DeadLetter(NamedTuple):
    """`death` is None for a message that a client wrote to the dead-letter topic."""

    id: MessageId
    record: ConsumedRecord
    death: DeadLetterOrigin | None
    redriven: int

    @classmethod
    def of(cls, record: ConsumedRecord) -> DeadLetter:
        letter_id = MessageId(record.topic, record.partition, record.offset)
        return cls(letter_id, record, dead_letter_origin(record.headers), redrive_count_of(record.headers))

    @property
    def origin(self) -> str:
        """The topic that the dead-letter topic belongs to. The headers of the letter are not trusted here: a client may
        have written them."""
        return self.id.topic.removesuffix(DEAD_LETTER_SUFFIX)


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """`to`: a topic other than the original one. `rate`: messages per second. A letter that was already redriven
    `max_redrives` times is not sent again. `to_all`: publish copies to the original topic, for all its subscriptions.
    """

    to: str | None = None
    rate: int | None = None
    max_redrives: int = MAX_REDRIVES
    to_all: bool = False

    @property
    def publishes(self) -> bool:
        """Whether copies are published, instead of the messages being returned to their subscriptions."""
        return self.to_all or self.to is not None


@dataclass(slots=True)
class RedriveResult:
    """Progress: letters `chosen` by the selection so far, and of these those settled now, settled before, and refused
    with a reason. `is_complete` is False if a limit ended it early."""

    chosen: int = 0
    settled: int = 0
    settled_before: int = 0
    refused: list[tuple[MessageId, str]] = field(default_factory=list)
    is_complete: bool = True


class Redriver:
    """`source_id` is the id of the topic that now has the name of the letters' origin; `ensure_same_source` raises if
    that has changed."""

    def __init__(
        self,
        options: RedriveOptions,
        clock: Clock,
        source_id: UUID | None,
        ensure_same_source: Callable[[], Awaitable[None]],
    ) -> None:
        self._options = options
        self._clock = clock
        self._source_id = source_id
        self._ensure_same_source = ensure_same_source
        self._next_at = 0.0

    @property
    def chunk_max(self) -> int:
        rate = self._options.rate
        return _CHUNK_MAX if rate is None else min(max(rate * _CHUNK_SECONDS, 1), _CHUNK_MAX)

    def check_redrive(self, letter: DeadLetter, outcome: RedriveResult) -> bool:
        died_in = None if letter.death is None else letter.death.topic_id
        if self._options.to is None and died_in is not None and died_in != self._source_id:
            why = f"it died in an earlier topic {letter.origin}; name the topic to send it to"
            outcome.refused.append((letter.id, why))
            return False
        if letter.redriven < self._options.max_redrives:
            return True
        outcome.refused.append((letter.id, f"it came back {letter.redriven} times already"))
        return False

    async def send(self, letters: Sequence[DeadLetter], done: set[int], outcome: RedriveResult) -> None:
        """Send letters in order, and add the offsets of those that are committed to `done`, also if a later one
        raises."""
        raise NotImplementedError

    async def _wait_for_rate(self) -> None:
        """Return when the rate allows another letter."""
        if self._options.rate is not None:
            await asyncio.sleep(self._next_at - self._clock.monotonic())
            await self._ensure_same_source()
            self._next_at = max(self._next_at, self._clock.monotonic()) + 1 / self._options.rate


class ReturningRedriver(Redriver):
    """Delivers messages again to the subscription whose dead letters they are."""

    def __init__(
        self,
        cluster: Cluster,
        options: RedriveOptions,
        source_id: UUID | None,
        ensure_same_source: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(options, cluster.clock, source_id, ensure_same_source)
        self._cluster = cluster

    async def send(self, letters: Sequence[DeadLetter], done: set[int], outcome: RedriveResult) -> None:
        if self._options.rate is None:
            await self._return(letters, done, outcome)
            return
        for letter in letters:
            await self._wait_for_rate()
            await self._return([letter], done, outcome)

    async def _return(self, letters: Sequence[DeadLetter], done: set[int], outcome: RedriveResult) -> None:
        groups: defaultdict[tuple[str, int], list[DeadLetter]] = defaultdict(list)
        for letter in letters:
            if letter.death is None or letter.death.topic != letter.origin:
                why = f"it does not say which message of {letter.origin} it is"
                outcome.refused.append((letter.id, f"{why}; {_PUBLISH_INSTEAD}"))
            else:
                groups[letter.death.subscription, letter.death.partition].append(letter)
        for (subscription, partition), some in groups.items():
            try:
                failed = await self._request(subscription, TopicPartition(some[0].origin, partition), some)
            except GroupIdNotFound as error:
                failed = dict.fromkeys(range(len(some)), error.message)
            for index, letter in enumerate(some):
                if index in failed:
                    outcome.refused.append((letter.id, f"{failed[index]}; {_PUBLISH_INSTEAD}"))
                else:
                    done.add(letter.id.offset)

    async def _request(
        self, subscription: str, target: TopicPartition, letters: Sequence[DeadLetter]
    ) -> Mapping[int, str]:
        """Redrive messages of one partition. Returns what is wrong with those that cannot be, by their index."""
        request = RedriveMessagesRequest(
            subscription=subscription,
            topic=target.topic,
            topic_id=self._source_id or NULL_UUID,
            partition_index=target.partition,
            items=[
                RedriveItem(letter.death.offset, letter.redriven + 1) for letter in letters if letter.death is not None
            ],
        )

        async def attempt() -> Mapping[int, str]:
            leader = (await self._cluster.partition(*target)).leader
            response: RedriveMessagesResponse = await self._cluster.call(request, node_id=leader)
            raise_for_code(response.error_code, response.error_message)
            return {one.index: one.error_message or "" for one in response.refused}

        return await self._cluster.call_with_retries(attempt)


class PublishingRedriver(Redriver):
    """Publishes copies. `has_window` tells whether a topic has a dedup window."""

    def __init__(
        self,
        producer: Producer,
        options: RedriveOptions,
        clock: Clock,
        has_window: Callable[[str], Awaitable[bool]],
        source_id: UUID | None,
        ensure_same_source: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(options, clock, source_id, ensure_same_source)
        self._producer = producer
        self._has_window = has_window

    async def send(self, letters: Sequence[DeadLetter], done: set[int], outcome: RedriveResult) -> None:
        deliveries: list[tuple[DeadLetter, Delivery]] = []
        try:
            await self._ensure_same_source()
            for letter in letters:
                await self._wait_for_rate()
                try:
                    deliveries.append((letter, await self._submit(letter)))
                except MessageTooLarge as error:
                    outcome.refused.append((letter.id, error.message))
        finally:
            await _await_deliveries(deliveries, done, outcome)

    async def _submit(self, letter: DeadLetter) -> Delivery:
        record = letter.record
        to = self._options.to
        death = letter.death if to in (None, letter.origin) else None
        topic = to or letter.origin
        return await self._producer.submit(
            topic,
            record.value,
            key=record.key,
            headers=redriven_headers(letter, has_window=await self._has_window(topic)),
            partition=None if death is None or death.topic != letter.origin else death.partition,
        )


async def _await_deliveries(
    deliveries: Sequence[tuple[DeadLetter, Delivery]], done: set[int], outcome: RedriveResult
) -> None:
    """Wait for all deliveries; raise the first error that is not caused by a letter itself at the end."""
    failure: HeadraceError | None = None
    for letter, delivery in deliveries:
        try:
            await delivery
        except (MessageTooLarge, InvalidRecords) as error:
            outcome.refused.append((letter.id, error.message))
        except HeadraceError as error:
            failure = failure or error
        else:
            done.add(letter.id.offset)
    if failure is not None:
        raise failure


def redriven_headers(letter: DeadLetter, *, has_window: bool) -> Headers:
    """The original headers, with a new dedup id: a topic with a window would drop the message under its old id."""
    headers = without(letter.record.headers, DEAD_LETTER_HEADERS)
    given = header_value(letter.record.headers, DEAD_DEDUP_ID)
    if has_window:
        died_ms = 0 if letter.death is None else letter.death.at_ms
        headers.append((DEDUP_ID, f"redrive/{letter.id}/{died_ms}".encode()))
    elif given is not None:
        headers.append((DEDUP_ID, given))
    return with_headers(headers, {REDRIVEN: str(letter.redriven + 1)})
