"""Dead letters, as an operator handles them: look at them, send them back, or be done with them.

    queue = DeadLetterQueue(cluster, "orders")
    async for letter in queue.letters(Selection(wanted=compile_filter("header.type = 'order'"))): ...
    await queue.redrive(Selection(ids=[letter.id]))

What became of a dead letter is kept by a subscription of its own, `headrace-redrive`: one that was sent back or
discarded is settled there. So whatever is broken off goes on where it stopped, and two who do it at the same time are
not in each other's way. A letter is settled when it lies in its target topic; only where that was not told, because
something broke in between, it is sent again, with the same dedup id, by which a topic with a window knows it.

Only what was there at the beginning is sent back: what dies again meanwhile waits for the next time. A letter that came
back often enough is refused, since it would come back once more.

A letter belongs to the topic that had the name when its message died, and says the id of that. Whoever names the topic
gets the letters of the one that exists now, and none of an earlier one of that name. Whoever names the dead-letter
topic gets all that it holds; letters of an earlier topic are sent only where `to` says.
"""

from __future__ import annotations

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
from headrace.client.queues.message_status import SETTLED
from headrace.client.queues.redrive import (
    READY,
    DeadLetter,
    RedriveOptions,
    Redriver,
    RedriveResult,
    RedriveSubscription,
)
from headrace.machines.queues.filters import Filter
from headrace.model.errors import InvalidRequest, InvalidTopic, UnknownTopicId, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.model.message_headers import DEAD_TOPIC_ID, Headers, header_value
from headrace.model.names import DEAD_LETTER_SUFFIX, dead_letter_topic

_CHUNK_MAX = 100
_POLL_SECONDS = 0.1
_RECORD_BYTES_MAX = 64 << 20

ReportProgress = Callable[[RedriveResult], None]
"""Called now and then, with the same outcome each time."""


@dataclass(frozen=True, slots=True)
class SettleLimits:
    """How many are settled at most, and after how long no more are begun with."""

    count_max: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which ones: by their ids, by a filter, or all. Who names one by its id that the filter leaves out is told that
    there is none."""

    ids: Collection[MessageId] = ()
    wanted: Filter | None = None

    def has(self, record: ConsumedRecord) -> bool:
        return self.wanted is None or self.wanted(record.key, record.headers)


class DeadLetterQueue:
    """Of a topic, or of all that a dead-letter topic holds if that is named. `with_unmarked`: letters that do not say
    the id of their topic count as the topic's; earlier versions and clients write such letters."""

    def __init__(self, cluster: Cluster, topic: str, *, with_unmarked: bool = True) -> None:
        self.name = topic if topic.endswith(DEAD_LETTER_SUFFIX) else dead_letter_topic(topic)
        self._source = self.name.removesuffix(DEAD_LETTER_SUFFIX)
        self._is_of_source = topic != self.name
        self._with_unmarked = with_unmarked
        self._cluster = cluster
        self._leases = RedriveSubscription(cluster, self.name)
        self._windows: dict[str, bool] = {}

    # Looking

    async def letters(
        self, selection: DeadLetterSelection | None = None, *, with_settled: bool = True
    ) -> AsyncGenerator[tuple[DeadLetter, str], None]:
        """Those that the log has, oldest first in each partition, and what became of them: ready, leased (somebody is
        at it), waiting, dying or settled. Without the settled ones those at the beginning are not even read."""
        floors = {} if with_settled else {one.target: one.floor for one in await self._leases.backlogs()}
        async with aclosing(self._chunks(selection or DeadLetterSelection(), floors)) as chunks:
            async for chunk in chunks:
                states = await self._states(chunk)
                for letter in chunk:
                    if with_settled or states[letter.id.offset] != SETTLED:
                        yield letter, states[letter.id.offset]

    async def count(self) -> int:
        """How many are not settled; gaps in the log are among them."""
        counts = {one.target: one.backlog for one in await self._leases.backlogs()}
        untouched = [target for target in await self._targets() if target not in counts]
        starts = await find_offsets(self._cluster, dict.fromkeys(untouched, START))
        ends = await find_offsets(self._cluster, dict.fromkeys(untouched, END))
        return sum(counts.values()) + sum(ends[target].offset - starts[target].offset for target in untouched)

    # Sending back, and being done with

    async def redrive(
        self,
        selection: DeadLetterSelection,
        rules: RedriveOptions | None = None,
        *,
        dry_run: bool = False,
        tell: ReportProgress | None = None,
        bounds: SettleLimits | None = None,
    ) -> RedriveResult:
        """Send them back. Raises what keeps a topic from taking any message; the rest is told in the outcome."""
        rules = rules or RedriveOptions()
        if rules.to == self.name:
            raise InvalidTopic(f"dead letters cannot be sent to {self.name}, where they are")
        settings = ProducerSettings(
            create_topics=False, record_bytes_max=_RECORD_BYTES_MAX, buffer_bytes_max=_RECORD_BYTES_MAX
        )
        async with Producer(self._cluster, settings) as producer:
            source_id = None if rules.to is not None else await self._source_id()

            async def ensure_same_source() -> None:
                if source_id is not None and await self._source_id() != source_id:
                    raise UnknownTopicId(f"topic {self._source} was deleted, or created again")

            sending = Redriver(producer, rules, self._cluster.clock, self._has_window, source_id, ensure_same_source)
            return await self._settle(selection, sending, bounds or SettleLimits(), dry_run=dry_run, tell=tell)

    async def discard(
        self,
        selection: DeadLetterSelection,
        *,
        dry_run: bool = False,
        tell: ReportProgress | None = None,
        bounds: SettleLimits | None = None,
    ) -> RedriveResult:
        """Be done with them: nobody is sent what they say."""
        return await self._settle(selection, None, bounds or SettleLimits(), dry_run=dry_run, tell=tell)

    async def _settle(
        self,
        selection: DeadLetterSelection,
        sending: Redriver | None,
        bounds: SettleLimits,
        *,
        dry_run: bool,
        tell: ReportProgress | None,
    ) -> RedriveResult:
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
                while rest and (room := _remaining_count(bounds, outcome)):
                    some, rest = rest[:room], rest[room:]
                    outcome.chosen += len(some)
                    due = [letter for letter in some if sending is None or sending.check_redrive(letter, outcome)]
                    if dry_run:
                        await self._attempt_chunk(due, outcome)
                    else:
                        await self._settle_batch(due, sending, outcome)
                if tell is not None:
                    tell(outcome)
                if rest or (bounds.seconds is not None and clock.monotonic() - began >= bounds.seconds):
                    outcome.is_complete = False
                    break
        return outcome

    async def _attempt_chunk(self, letters: Sequence[DeadLetter], outcome: RedriveResult) -> None:
        states = await self._states(letters)
        ready = sum(state == READY for state in states.values())
        outcome.settled += ready
        outcome.settled_before += len(letters) - ready

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
        """Of letters of one partition, by offset."""
        if not letters:
            return {}
        target = TopicPartition(self.name, letters[0].id.partition)
        return await self._leases.states(target, [letter.id.offset for letter in letters])

    async def _targets(self) -> list[TopicPartition]:
        view = await self._cluster.call_with_retries(lambda: self._cluster.current_topic(self.name))
        return [TopicPartition(self.name, partition.partition) for partition in view.partitions]

    async def _source_id(self) -> UUID | None:
        """Of the topic that has the name now, as the brokers know it: memory may hold an earlier one."""
        try:
            return (await self._cluster.call_with_retries(lambda: self._cluster.current_topic(self._source))).topic_id
        except UnknownTopicOrPartition:
            return None

    async def _own(self, selection: DeadLetterSelection) -> DeadLetterSelection:
        """Without the letters of earlier topics of the name, if the topic was named."""
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
        """The selected ones of all that is there now, some of one partition at a time; a search among all leaves out
        what lies below the floors."""
        targets = await self._targets()
        selection = await self._own(selection)
        starts = await find_offsets(self._cluster, dict.fromkeys(targets, START))
        ends = await find_offsets(self._cluster, dict.fromkeys(targets, END))
        if selection.ids:
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
        """One whose offset is within the log, where it may have been compacted away."""
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


def _remaining_count(bounds: SettleLimits, outcome: RedriveResult) -> int:
    """How many more may be settled, and at most so many as a chunk can have."""
    return _CHUNK_MAX if bounds.count_max is None else max(bounds.count_max - outcome.settled, 0)


def _missing(letter_id: MessageId) -> InvalidRequest:
    return InvalidRequest(f"there is no dead letter {letter_id}, or not any more")
