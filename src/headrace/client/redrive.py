"""How a dead letter is sent back: as the message that it was, but for the count of its returns.

The message goes where it came from, into the partition that it lay in, or to another topic, where its key decides. Its
time is now, so that what counts from a message's time begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.client.fetched import ConsumedRecord
from headrace.client.producer import Delivery, Producer
from headrace.model.errors import HeadraceError, MessageTooLarge, RecordRefused
from headrace.model.message_headers import (
    DEAD_DEDUP_ID,
    DEDUP_ID,
    OF_THE_DEATH,
    REDRIVEN,
    Death,
    Headers,
    death_of,
    header_of,
    redriven_of,
    with_headers,
    without,
)
from headrace.model.message_ids import MessageId
from headrace.model.names import DEAD_LETTER_SUFFIX
from headrace.runtime.clock import Clock

MAX_REDRIVES = 3

_CHUNK_MAX = 100
_CHUNK_SECONDS = 5  # of a rate: a lease must not end while its messages wait for their turn


class DeadLetter(NamedTuple):
    """`death` is None of a message that somebody else has put among the dead letters."""

    id: MessageId
    record: ConsumedRecord
    death: Death | None
    redriven: int

    @classmethod
    def of(cls, record: ConsumedRecord) -> DeadLetter:
        letter_id = MessageId(record.topic, record.partition, record.offset)
        return cls(letter_id, record, death_of(record.headers), redriven_of(record.headers))

    @property
    def origin(self) -> str:
        """The topic whose queue it lies in. The letter's headers do not decide: a client may have written them."""
        return self.id.topic.removesuffix(DEAD_LETTER_SUFFIX)


@dataclass(frozen=True, slots=True)
class RedriveRules:
    """`to`: another topic than that where they come from. `rate`: messages per second. `max_redrives`: who came back so
    often stays."""

    to: str | None = None
    rate: int | None = None
    max_redrives: int = MAX_REDRIVES


@dataclass(slots=True)
class Outcome:
    """How far it is: `chosen` by the selection so far; of these, `settled` now, before, or refused for a reason. Not
    complete: it was ended by its bounds before it had come to the end."""

    chosen: int = 0
    settled: int = 0
    settled_before: int = 0
    refused: list[tuple[MessageId, str]] = field(default_factory=list)
    is_complete: bool = True


async def _unchecked() -> None:
    return


class Sending:
    """`has_window` says whether a topic knows dedup ids. `source_id` is that of the topic that has the name of the
    letters' origin now; `ensure_same_source` raises when it has another one."""

    def __init__(
        self,
        producer: Producer,
        rules: RedriveRules,
        clock: Clock,
        has_window: Callable[[str], Awaitable[bool]],
        source_id: UUID | None = None,
        ensure_same_source: Callable[[], Awaitable[None]] = _unchecked,
    ) -> None:
        self._producer = producer
        self._rules = rules
        self._clock = clock
        self._has_window = has_window
        self._source_id = source_id
        self._ensure_same_source = ensure_same_source
        self._next_at = 0.0

    @property
    def chunk_max(self) -> int:
        """How many may be leased at a time."""
        rate = self._rules.rate
        return _CHUNK_MAX if rate is None else min(max(rate * _CHUNK_SECONDS, 1), _CHUNK_MAX)

    def may_go(self, letter: DeadLetter, outcome: Outcome) -> bool:
        died_in = None if letter.death is None else letter.death.topic_id
        if self._rules.to is None and died_in is not None and died_in != self._source_id:
            why = f"it died in an earlier topic {letter.origin}; name the topic to send it to"
            outcome.refused.append((letter.id, why))
            return False
        if letter.redriven < self._rules.max_redrives:
            return True
        outcome.refused.append((letter.id, f"it came back {letter.redriven} times already"))
        return False

    async def send(self, letters: Sequence[DeadLetter], done: set[int], outcome: Outcome) -> None:
        """Send them in their order; the offsets of those that lie in their topic are added to `done`, also of those
        before the one that raises."""
        deliveries: list[tuple[DeadLetter, Delivery]] = []
        try:
            await self._ensure_same_source()
            for letter in letters:
                await self._turn()
                try:
                    deliveries.append((letter, await self._submit(letter)))
                except MessageTooLarge as error:
                    outcome.refused.append((letter.id, error.message))
        finally:
            await _all_of(deliveries, done, outcome)

    async def _turn(self) -> None:
        """Return when the rate allows one more."""
        if self._rules.rate is not None:
            await asyncio.sleep(self._next_at - self._clock.monotonic())
            await self._ensure_same_source()
            self._next_at = max(self._next_at, self._clock.monotonic()) + 1 / self._rules.rate

    async def _submit(self, letter: DeadLetter) -> Delivery:
        record = letter.record
        to = self._rules.to
        death = letter.death if to in (None, letter.origin) else None
        topic = to or letter.origin
        return await self._producer.submit(
            topic,
            record.value,
            key=record.key,
            headers=sent_headers(letter, has_window=await self._has_window(topic)),
            partition=None if death is None or death.topic != letter.origin else death.partition,
        )


async def _all_of(deliveries: Sequence[tuple[DeadLetter, Delivery]], done: set[int], outcome: Outcome) -> None:
    """Wait for all of them, whatever becomes of one; raise in the end what is not the fault of a letter."""
    failure: HeadraceError | None = None
    for letter, delivery in deliveries:
        try:
            await delivery
        except (MessageTooLarge, RecordRefused) as error:
            outcome.refused.append((letter.id, error.message))
        except HeadraceError as error:
            failure = failure or error
        else:
            done.add(letter.id.offset)
    if failure is not None:
        raise failure


def sent_headers(letter: DeadLetter, *, has_window: bool) -> Headers:
    """Those that the message had. With the dedup id that it had, too, a topic that still knows that would drop it."""
    headers = without(letter.record.headers, OF_THE_DEATH)
    given = header_of(letter.record.headers, DEAD_DEDUP_ID)
    if has_window:
        died_ms = 0 if letter.death is None else letter.death.at_ms
        headers.append((DEDUP_ID, f"redrive/{letter.id}/{died_ms}".encode()))
    elif given is not None:
        headers.append((DEDUP_ID, given))
    return with_headers(headers, {REDRIVEN: str(letter.redriven + 1)})
