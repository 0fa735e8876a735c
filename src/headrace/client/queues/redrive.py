"""Send dead letters back: leases of single letters, and the messages that they become.

The message goes where it came from, into the partition that it lay in, or to another topic, where its key decides.
Its time is now, so that what counts from a message's time begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.client.admin.subscription_admin import START, PartitionBacklog, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for_code
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Delivery, Producer
from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import ACK, NACK, settle
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
from headrace.runtime.clock import Clock
from headrace.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from headrace.wire.messages.queues import (
    LeaseOffsetsRange,
    LeaseOffsetsRequest,
    LeaseOffsetsResponse,
    MessageStatusRequest,
    MessageStatusResponse,
    SettleItem,
    SubscriptionStatus,
)

# What became of dead letters: the subscription `headrace-redrive` of a dead-letter topic, and leases of single ones.
#
# Each is leased by its offset, so the others are not touched: a lease that nobody wants would count as a delivery. What
# was leased and is not done comes back at once.


REDRIVE_SUBSCRIPTION = "headrace-redrive"
READY = "ready"
_LEASED = "leased"

_DELIVERIES_MAX = "1000"  # the most there can be: a letter that could not be sent back is not to be lost for that
_LEASE_MS = 5 * 60_000
_GROUP_RESOURCE = 32


class LeasedDeadLetters:
    """`receipts` by offset. `done` is for whoever has them: those are settled in the end, and the others come back."""

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
        """Make the subscription where it is missing, from the first dead letter on; where it stands."""
        change = IncrementalAlterableConfig(
            name="share.delivery.count.limit", config_operation=0, value=_DELIVERIES_MAX
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=_GROUP_RESOURCE, resource_name=REDRIVE_SUBSCRIPTION, configs=[change]
        )

        async def configure() -> None:
            answer = await self._cluster.call(IncrementalAlterConfigsRequest(resources=[resource]))
            for told in answer.responses:
                raise_for_code(told.error_code, told.error_message)

        await self._cluster.call_with_retries(configure)
        return await self._admin.create(self._topic, REDRIVE_SUBSCRIPTION, Position(START))

    async def backlogs(self) -> Sequence[PartitionBacklog]:
        """How far the subscription is, where it is made."""
        try:
            return await self._admin.describe(REDRIVE_SUBSCRIPTION, [self._topic])
        except GroupIdNotFound:
            return []

    async def states(self, target: TopicPartition, offsets: Sequence[int]) -> dict[int, str]:
        """What became of each; without the subscription nothing has."""
        try:
            statuses = await self._cluster.call_with_retries(lambda: self._statuses(target, offsets))
        except GroupIdNotFound:
            statuses = []
        return dict.fromkeys(offsets, READY) | {status.offset: status.state for status in statuses}

    async def _statuses(self, target: TopicPartition, offsets: Collection[int]) -> list[SubscriptionStatus]:
        request = MessageStatusRequest(
            topic=self._topic,
            partition_index=target.partition,
            offsets=[*offsets],
            subscriptions=[REDRIVE_SUBSCRIPTION],
            with_history=False,
        )
        response: MessageStatusResponse = await self._cluster.call(request, node_id=await self._leader(target))
        raise_for_code(response.error_code, response.error_message)
        return response.statuses

    @asynccontextmanager
    async def lease(self, target: TopicPartition, offsets: Collection[int]) -> AsyncIterator[LeasedDeadLetters]:
        """Those of the offsets that are neither settled nor leased by somebody else."""
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

        async def ask() -> LeasedDeadLetters:
            answer: LeaseOffsetsResponse = await self._cluster.call(request, node_id=await self._leader(target))
            raise_for_code(answer.error_code, answer.error_message)
            attempts = {offset: one.attempt for one in answer.leased for offset in range(one.first, one.last + 1)}
            attempts |= await self._already_leased(target, [one for one in offsets if one not in attempts])
            return LeasedDeadLetters(
                {
                    offset: LeaseReceipt(MessageId(*target, offset), attempt, answer.lease_epoch, self._member)
                    for offset, attempt in attempts.items()
                }
            )

        return await self._cluster.call_with_retries(ask)

    async def _already_leased(self, target: TopicPartition, offsets: Collection[int]) -> dict[int, int]:
        """The attempts of those that an earlier request of ours has leased, whose response was lost. Otherwise they
        would count as dealt with by another redrive."""
        if not offsets:
            return {}
        statuses = await self._statuses(target, offsets)
        return {one.offset: one.attempts for one in statuses if one.state == _LEASED and one.member == self._member}

    async def _settle(self, leased: LeasedDeadLetters) -> None:
        done = [receipt for offset, receipt in leased.receipts.items() if offset in leased.done]
        left = [receipt for offset, receipt in leased.receipts.items() if offset not in leased.done]
        refused = []
        if done:
            refused += await settle(self._cluster, REDRIVE_SUBSCRIPTION, done, SettleItem(how=ACK))
        if left:
            how = SettleItem(how=NACK, delay_ms=0, reason="it was not sent back")
            refused += await settle(self._cluster, REDRIVE_SUBSCRIPTION, left, how)
        for one in refused:
            raise one.error

    async def _leader(self, target: TopicPartition) -> int:
        return (await self._cluster.partition(*target)).leader


MAX_REDRIVES = 3

_CHUNK_MAX = 100
_CHUNK_SECONDS = 5  # of a rate: a lease must not end while its messages wait for their turn


class DeadLetter(NamedTuple):
    """`death` is None of a message that somebody else has put among the dead letters."""

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
        """The topic whose queue it lies in. The letter's headers do not decide: a client may have written them."""
        return self.id.topic.removesuffix(DEAD_LETTER_SUFFIX)


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """`to`: another topic than that where they come from. `rate`: messages per second. `max_redrives`: who came back so
    often stays."""

    to: str | None = None
    rate: int | None = None
    max_redrives: int = MAX_REDRIVES


@dataclass(slots=True)
class RedriveResult:
    """How far it is: `chosen` by the selection so far; of these, `settled` now, before, or refused for a reason. Not
    complete: it was ended by its bounds before it had come to the end."""

    chosen: int = 0
    settled: int = 0
    settled_before: int = 0
    refused: list[tuple[MessageId, str]] = field(default_factory=list)
    is_complete: bool = True


async def _unchecked() -> None:
    return


class Redriver:
    """`has_window` says whether a topic knows dedup ids. `source_id` is that of the topic that has the name of the
    letters' origin now; `ensure_same_source` raises when it has another one."""

    def __init__(
        self,
        producer: Producer,
        options: RedriveOptions,
        clock: Clock,
        has_window: Callable[[str], Awaitable[bool]],
        source_id: UUID | None = None,
        ensure_same_source: Callable[[], Awaitable[None]] = _unchecked,
    ) -> None:
        self._producer = producer
        self._options = options
        self._clock = clock
        self._has_window = has_window
        self._source_id = source_id
        self._ensure_same_source = ensure_same_source
        self._next_at = 0.0

    @property
    def chunk_max(self) -> int:
        """How many may be leased at a time."""
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
        """Send them in their order; the offsets of those that lie in their topic are added to `done`, also of those
        before the one that raises."""
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

    async def _wait_for_rate(self) -> None:
        """Return when the rate allows one more."""
        if self._options.rate is not None:
            await asyncio.sleep(self._next_at - self._clock.monotonic())
            await self._ensure_same_source()
            self._next_at = max(self._next_at, self._clock.monotonic()) + 1 / self._options.rate

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
    """Wait for all of them, whatever becomes of one; raise in the end what is not the fault of a letter."""
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
    """Those that the message had. With the dedup id that it had, too, a topic that still knows that would drop it."""
    headers = without(letter.record.headers, DEAD_LETTER_HEADERS)
    given = header_value(letter.record.headers, DEAD_DEDUP_ID)
    if has_window:
        died_ms = 0 if letter.death is None else letter.death.at_ms
        headers.append((DEDUP_ID, f"redrive/{letter.id}/{died_ms}".encode()))
    elif given is not None:
        headers.append((DEDUP_ID, given))
    return with_headers(headers, {REDRIVEN: str(letter.redriven + 1)})
