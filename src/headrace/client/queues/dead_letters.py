"""List, redrive and discard dead letters.

    queue = DeadLetterQueue(cluster, "orders")
    async for letter in queue.letters(Selection(wanted=compile_filter("header.type = 'order'"))): ...
    await queue.redrive(Selection(ids=[letter.id]))

- The subscription `headrace-redrive` keeps the state: letters that were redriven or discarded are settled there. An
  interrupted redrive continues where it stopped, and concurrent ones do not interfere.
- A redrive delivers a message again only to the subscription whose dead letter it is; on request it publishes a copy.
- A letter is settled after its message is redriven. If that was not confirmed, the message is redriven again; a
  published copy has the same dedup id then, so that a topic with a dedup window drops the duplicate.
- Only letters that exist at the beginning are redriven: a message that dies again waits for the next redrive. A letter
  that was redriven too often is refused.
- A letter carries the id of its topic. A queue that is opened by the name of a topic has the letters of the topic that
  exists now, not those of a deleted topic of the same name. Opened by the name of the dead-letter topic, it has all
  letters; those of deleted topics are redriven only with an explicit `to`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from headrace.client.admin.topic_admin import TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import END, START, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer, ProducerSettings
from headrace.client.queues.redrive import (
    READY,
    DeadLetter,
    PublishingRedriver,
    RedriveOptions,
    Redriver,
    RedriveResult,
    RedriveSubscription,
    ReturningRedriver,
)
from headrace.client.queues.settling import SETTLED
from headrace.machines.queues.filters import Filter
from headrace.model.errors import InvalidRequest, InvalidTopic, UnknownTopicId, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.model.message_headers import DEAD_TOPIC_ID, Headers, header_value
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic

_CHUNK_MAX = 100
_POLL_SECONDS = 0.1

ReportProgress = Callable[[RedriveResult], None]
"""Called after each chunk, with the same result object each time."""


@dataclass(frozen=True, slots=True)
class SettleLimits:
    """The maximum number of letters to settle, and the time after which no further chunk is started."""

    count_max: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Letters by their ids, by a filter, or all. `ids` None: all that the filter selects; an empty collection selects
    nothing. A letter that is named by id but excluded by the filter counts as missing."""

    ids: Collection[MessageId] | None = None
    wanted: Filter | None = None

    def has(self, record: ConsumedRecord) -> bool:
        return self.wanted is None or self.wanted(record.key, record.headers)


class DeadLetterQueue:
    """The dead letters of a topic, or all letters of a dead-letter topic. `with_unmarked`: letters without a topic id,
    which earlier versions and clients write, count as letters of the topic."""

    def __init__(self, cluster: Cluster, topic: str, *, with_unmarked: bool = True) -> None:
        self.name = topic if topic.endswith(DEAD_LETTER_SUFFIX) else dead_letter_topic(topic)
        self._source = self.name.removesuffix(DEAD_LETTER_SUFFIX)
        self._is_of_source = topic != self.name
        self._with_unmarked = with_unmarked
        self._cluster = cluster
        self._leases = RedriveSubscription(cluster, self.name)
        self._windows: dict[str, bool] = {}

    # Listing

    async def letters(
        self, selection: DeadLetterSelection | None = None, *, with_settled: bool = True
    ) -> AsyncGenerator[tuple[DeadLetter, str], None]:
        """The letters, oldest first in each partition, with their state: ready, leased (by a redrive), waiting, dying
        or settled. Without the settled ones, letters below the ack floor are not read."""
        floors = {} if with_settled else {one.target: one.floor for one in await self._leases.backlogs()}
        async with aclosing(self._chunks(selection or DeadLetterSelection(), floors)) as chunks:
            async for chunk in chunks:
                states = await self._states(chunk)
                for letter in chunk:
                    if with_settled or states[letter.id.offset] != SETTLED:
                        yield letter, states[letter.id.offset]

    async def count(self) -> int:
        """The number of unsettled letters; gaps in the log count as well."""
        counts = {one.target: one.backlog for one in await self._leases.backlogs()}
        untouched = [target for target in await self._targets() if target not in counts]
        starts = await find_offsets(self._cluster, dict.fromkeys(untouched, START))
        ends = await find_offsets(self._cluster, dict.fromkeys(untouched, END))
        return sum(counts.values()) + sum(ends[target].offset - starts[target].offset for target in untouched)

    # Redriving and discarding

    async def redrive(
        self,
        selection: DeadLetterSelection,
        rules: RedriveOptions | None = None,
        *,
        dry_run: bool = False,
        report_progress: ReportProgress | None = None,
        limits: SettleLimits | None = None,
    ) -> RedriveResult:
        """Send letters back. Raises errors that affect a whole topic; errors of single letters are in the result."""
        rules = rules or RedriveOptions()
        if rules.to == self.name:
            raise InvalidTopic(f"dead letters cannot be sent to {self.name}, where they are")
        source_id = None if rules.to is not None else await self._source_id()

        async def ensure_same_source() -> None:
            if source_id is not None and await self._source_id() != source_id:
                raise UnknownTopicId(f"topic {self._source} was deleted, or created again")

        async def settle(sending: Redriver) -> RedriveResult:
            return await self._settle(selection, sending, limits, dry_run=dry_run, report_progress=report_progress)

        if not rules.publishes:
            return await settle(ReturningRedriver(self._cluster, rules, source_id, ensure_same_source))
        async with Producer(self._cluster, ProducerSettings(create_topics=False)) as producer:
            clock = self._cluster.clock
            return await settle(
                PublishingRedriver(producer, rules, clock, self._has_window, source_id, ensure_same_source)
            )

    async def discard(
        self,
        selection: DeadLetterSelection,
        *,
        dry_run: bool = False,
        report_progress: ReportProgress | None = None,
        limits: SettleLimits | None = None,
    ) -> RedriveResult:
        return await self._settle(selection, None, limits, dry_run=dry_run, report_progress=report_progress)

    async def _settle(
        self,
        selection: DeadLetterSelection,
        sending: Redriver | None,
        limits: SettleLimits | None,
        *,
        dry_run: bool,
        report_progress: ReportProgress | None,
    ) -> RedriveResult:
        limits = limits or SettleLimits()
        settled_max = sys.maxsize if limits.count_max is None else limits.count_max
        outcome = RedriveResult()
        clock, began = self._cluster.clock, self._cluster.clock.monotonic()
        if dry_run:
            floors: Mapping[TopicPartition, int] = {one.target: one.floor for one in await self._leases.backlogs()}
        else:
            floors = await self._leases.begin()
        chunk_max = _CHUNK_MAX if sending is None else sending.chunk_max
        async with aclosing(self._chunks(selection, floors, chunk_max)) as chunks:
            async for chunk in chunks:
                rest = chunk
                while rest and (room := max(settled_max - outcome.settled, 0)):
                    some, rest = rest[:room], rest[room:]
                    outcome.chosen += len(some)
                    due = [letter for letter in some if sending is None or sending.check_redrive(letter, outcome)]
                    if dry_run:
                        ready = sum(state == READY for state in (await self._states(due)).values())
                        outcome.settled += ready
                        outcome.settled_before += len(due) - ready
                    else:
                        await self._settle_batch(due, sending, outcome)
                if report_progress is not None:
                    report_progress(outcome)
                if rest or (limits.seconds is not None and clock.monotonic() - began >= limits.seconds):
                    outcome.is_complete = False
                    break
        return outcome

    async def _settle_batch(
        self, letters: Sequence[DeadLetter], sending: Redriver | None, outcome: RedriveResult
    ) -> None:
        if not letters:
            return
        target = TopicPartition(self.name, letters[0].id.partition)
        async with self._leases.lease(target, [letter.id.offset for letter in letters]) as leased:
            held = [letter for letter in letters if letter.id.offset in leased.receipts]
            if sending is None:
                leased.done.update(leased.receipts)
            else:
                await sending.send(held, leased.done, outcome)
        outcome.settled += len(leased.done)
        outcome.settled_before += len(letters) - len(held)

    # Reading

    async def _states(self, letters: Sequence[DeadLetter]) -> dict[int, str]:
        """The states of letters of one partition, by offset."""
        if not letters:
            return {}
        target = TopicPartition(self.name, letters[0].id.partition)
        return await self._leases.states(target, [letter.id.offset for letter in letters])

    async def _targets(self) -> list[TopicPartition]:
        view = await self._cluster.call_with_retries(lambda: self._cluster.current_topic(self.name))
        return [TopicPartition(self.name, partition.partition) for partition in view.partitions]

    async def _source_id(self) -> UUID | None:
        """The id of the topic that has the name now, by fresh metadata: cached metadata may be of a deleted topic."""
        try:
            return (await self._cluster.call_with_retries(lambda: self._cluster.current_topic(self._source))).topic_id
        except UnknownTopicOrPartition:
            return None

    async def _own(self, selection: DeadLetterSelection) -> DeadLetterSelection:
        """Exclude letters of deleted topics of the same name, unless the dead-letter topic was named."""
        if not self._is_of_source:
            return selection
        source_id = await self._source_id()
        if source_id is None:
            raise UnknownTopicOrPartition(
                f"there is no topic {self._source!r}; name {self.name} for what it left among the dead letters"
            )

        def is_own(key: bytes | None, headers: Headers) -> bool:
            said = header_value(headers, DEAD_TOPIC_ID)
            is_ours = self._with_unmarked if said is None else said == str(source_id).encode()
            return is_ours and (selection.wanted is None or selection.wanted(key, headers))

        return DeadLetterSelection(selection.ids, is_own)

    async def _chunks(
        self, selection: DeadLetterSelection, floors: Mapping[TopicPartition, int], chunk_max: int = _CHUNK_MAX
    ) -> AsyncGenerator[list[DeadLetter], None]:
        """The selected letters that exist now, in chunks of one partition. Letters below `floors` are skipped unless
        they are selected by id."""
        targets = await self._targets()
        selection = await self._own(selection)
        starts = await find_offsets(self._cluster, dict.fromkeys(targets, START))
        ends = await find_offsets(self._cluster, dict.fromkeys(targets, END))
        if selection.ids is not None:
            for letter_id in sorted(selection.ids):
                target = TopicPartition(letter_id.topic, letter_id.partition)
                if target not in starts or not starts[target].offset <= letter_id.offset < ends[target].offset:
                    raise _missing(letter_id)
                letter = await self._find(letter_id, target)
                if not selection.has(letter.record):
                    raise _missing(letter_id)
                yield [letter]
            return
        for target in targets:
            start, end = max(starts[target].offset, floors.get(target, 0)), ends[target].offset
            async with Consumer(self._cluster, partitions={target: start}) as consumer:
                while consumer.position(target) < end:
                    records = await consumer.poll(chunk_max, _POLL_SECONDS)
                    chunk = [
                        DeadLetter.of(record) for record in records if record.offset < end and selection.has(record)
                    ]
                    if chunk:
                        yield chunk

    async def _find(self, letter_id: MessageId, target: TopicPartition) -> DeadLetter:
        """Read one letter, which may have been compacted away."""
        async with Consumer(self._cluster, partitions={target: letter_id.offset}) as consumer:
            while consumer.position(target) <= letter_id.offset:
                for record in await consumer.poll(1, _POLL_SECONDS):
                    if record.offset == letter_id.offset:
                        return DeadLetter.of(record)
        raise _missing(letter_id)

    async def _has_window(self, topic: str) -> bool:
        if topic not in self._windows:
            configs = await TopicAdmin(self._cluster).configs(topic)
            self._windows[topic] = any(one.name == "dedup.window.ms" and one.value != "0" for one in configs)
        return self._windows[topic]


def _missing(letter_id: MessageId) -> InvalidRequest:
    return InvalidRequest(f"there is no dead letter {letter_id}, or not any more")
