"""Compare the acks log of a subscription with its topic and its dead letters.

- A message in the topic that is not settled is lost to the subscription; so is one that retention removed before it was
  settled.
- A message that consumers settled twice is duplicated. A settled offset that the topic never had is foreign.
- A message that became a dead letter must be in the dead-letter topic unchanged, unless dead letters were removed
  there, as settled ones are.
- A trimmed acks log begins with a snapshot, which says what is settled but not how. Only settlements by consumers can
  count twice: expiry and gaps may cover any range.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.machines.queues.settled_offsets import present_ranges
from headrace.machines.queues.subscription_values import Range
from headrace.model.message_headers import DEAD_LETTER_HEADERS, REDRIVEN, dead_letter_origin
from headrace.model.names import DEAD_LETTER_SUFFIX, acks_topic
from headrace.pipeline.audit.findings import LISTED_MAX, AuditFinding, range_findings
from headrace.pipeline.audit.record_comparison import Kind, RecordDigest, differing_fields
from headrace.pipeline.audit.record_digests import DigestOptions, record_digests
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, TopicSource, within_times
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Failed,
    Redriven,
    Settled,
    SettledHow,
    SnapshotEvent,
    Sought,
    decode_event,
)

SETTLED_BY_CONSUMER: tuple[SettledHow, ...] = ("ack", "reject", "dead", "discarded")
"""Ways to settle a message that was delivered."""

_NONE = BitMap64()


class SubscriptionLedger:
    """The state of one subscription in one partition, built from the events of its acks log. Pure.

    `is_known`: the state is complete, so every event counts. Offsets below the ack floor do not concern the
    subscription. A seek clears settlements and failures, but not `twice`, `deaths` and `redriven`.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.exists = False
        self.twice = BitMap64()
        self.deaths: Counter[int] = Counter()
        self.redriven = BitMap64()
        self._parts: list[SnapshotEvent] = []
        self._begin(0)

    def apply(self, event: AcksEvent) -> None:
        match event:
            case SnapshotEvent():
                self._add_part(event)
            case Created() | Sought():
                self.is_known = self.exists = True
                self._begin(event.floor)
            case Deleted():
                self.exists = False
                self._begin(0)
            case Settled():
                for first, last in event.ranges:
                    if event.how == "expired":
                        self._expire(self.removed if event.by_retention else self.expired, first, last)
                    self._settle(event.how, first, last)
            case Redriven():
                for offset, _ in event.messages:
                    self._reopen(offset)
            case Failed():
                self.failures.append(event)

    def newly_settled(self, event: Settled) -> int:
        """The number of unsettled messages that the event would settle if it is applied next."""
        return sum(
            last + 1 - max(first, self.floor) - self.settled.range_cardinality(max(first, self.floor), last + 1)
            for first, last in event.ranges
            if last >= self.floor
        )

    def settled_count(self, start: int, end: int) -> int:
        """The number of these offsets that are settled or below the ack floor."""
        bottom = min(max(self.floor, start), end)
        return bottom - start + int(self.settled.range_cardinality(bottom, end))

    def settled_otherwise(self, offset: int) -> SettledHow | None:
        """How a message was settled other than as a dead letter."""
        return next((how for how, offsets in self.by_type.items() if how != "dead" and offset in offsets), None)

    def _expire(self, unsettled: BitMap64, first: int, last: int) -> None:
        found = BitMap64()
        found.add_range(max(first, self.floor), last + 1)
        unsettled |= found - self.settled

    def _settle(self, how: SettledHow, first: int, last: int) -> None:
        if how in SETTLED_BY_CONSUMER:
            for other in SETTLED_BY_CONSUMER:
                for again in present_ranges(self.by_type.get(other, _NONE), first, last + 1):
                    self.twice.add_range(again.first, again.last + 1)
        if how == "dead":
            self.deaths.update(range(first, last + 1))
        self.by_type.setdefault(how, BitMap64()).add_range(first, last + 1)
        self.settled.add_range(first, last + 1)

    def _begin(self, floor: int) -> None:
        self.floor = floor
        self.settled = BitMap64()
        self.by_type: dict[SettledHow, BitMap64] = {}
        self.removed = BitMap64()  # removed by retention before they were settled
        self.expired = BitMap64()  # expired by their time to live before they were settled
        self.failures: list[Failed] = []

    def _reopen(self, offset: int) -> None:
        """The message was redriven: it is delivered again, and may be settled once more."""
        self.redriven.add(offset)
        if offset < self.floor:  # the floor is that of a snapshot
            self.settled.add_range(offset + 1, self.floor)
            self.floor = offset
        self.settled.discard(offset)
        for offsets in (*self.by_type.values(), self.removed, self.expired):
            offsets.discard(offset)

    def _add_part(self, part: SnapshotEvent) -> None:
        if self.is_known:
            return
        if part.part == 1 or (self._parts and self._parts[0].id != part.id):
            self._parts = []
        self._parts.append(part)
        if len(self._parts) == part.parts:
            self.is_known = self.exists = True
            self._begin(part.floor)
            for one in self._parts:
                if one.settled:
                    self.settled |= BitMap64.deserialize(one.settled)


def runs(offsets: BitMap64, start: int = 0) -> Iterator[Range]:
    """Each run of offsets from `start` on."""
    return present_ranges(offsets, start, offsets.max() + 1) if offsets else iter(())


_CONTENT = DigestOptions("offset", timestamps=False)


class SettledTask(msgspec.Struct, frozen=True):
    """Messages of [start, end) that are older than `until_ms` are checked. `newest`: the end of the topic, determined
    after that of the acks log."""

    topic: TopicSource
    subscription: str
    partition: int
    start: int
    end: int
    newest: int
    acks_start: int
    acks_end: int
    until_ms: int | None = None


class DeadMessage(msgspec.Struct, frozen=True):
    """A message that became a dead letter `count` times; `entry` is the message, if the topic still has it."""

    offset: int
    count: int
    entry: RecordDigest | None


class SettledPart(msgspec.Struct, frozen=True):
    """The result of one partition. `worked`: how messages were settled that have a dead letter without a dead-letter
    event; `exists`: the log has the subscription; `expired`: the number of messages whose time to live ended. Events of
    older brokers do not distinguish these from messages that retention removed."""

    partition: int
    judged: int
    findings: Sequence[AuditFinding]
    deaths: Sequence[DeadMessage]
    worked: Mapping[int, str]
    exists: bool
    expired: int = 0


class AuditedDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter and the message that it is a copy of; `entry` is without the headers that a dead letter adds."""

    partition: int
    offset: int
    found: int
    entry: RecordDigest


class AuditedDeadLetters(msgspec.Struct, frozen=True):
    """The dead letters of the subscription in one range, and the number of all records in the range."""

    letters: Sequence[AuditedDeadLetter]
    records: int


def check_settled(read: ReadSource, letters: Mapping[int, frozenset[int]], task: SettledTask) -> SettledPart:
    """`letters`: per partition, the offsets of messages that have a dead letter."""
    ledger = read_ledger(read, task)
    if not ledger.exists:
        return SettledPart(task.partition, 0, (), (), {}, False)
    judged = _present(read, task, max(task.start, ledger.floor))
    findings = capped(_findings(task, ledger, judged))
    deaths = list(_dead_messages(read, task, ledger))
    own_letters = letters.get(task.partition, frozenset())
    # A message that was redriven had become a dead letter, even if the log no longer has that event.
    undead = (offset for offset in own_letters if not ledger.deaths[offset] and offset not in ledger.redriven)
    worked = {offset: how for offset in undead if (how := ledger.settled_otherwise(offset)) is not None}
    return SettledPart(task.partition, len(judged), findings, deaths, worked, True, len(ledger.expired))


def read_ledger(read: ReadSource, task: SettledTask) -> SubscriptionLedger:
    ledger = SubscriptionLedger()
    range_ = PartitionRange(task.partition, task.acks_start, task.acks_end)
    for _, event in read_events(read, task.topic, range_, [task.subscription]):
        ledger.apply(event)
    return ledger


def read_events(
    read: ReadSource, topic: TopicSource, range_: PartitionRange, subscriptions: Iterable[str]
) -> Iterator[tuple[str, AcksEvent]]:
    """The events of these subscriptions in a range of the acks log of the topic."""
    wanted = pa.array([name.encode() for name in subscriptions], pa.binary())
    for batch in read(TopicSource(topic.brokers, acks_topic(topic.name)), range_, ("key", "value")):
        own = batch.filter(pc.is_in(batch.column("key"), wanted))
        yield from map(decode_event, own.column("key").to_pylist(), own.column("value").to_pylist())


def read_dead_letters(
    read: ReadSource, topic: str, subscription: str, task: tuple[TopicSource, PartitionRange]
) -> AuditedDeadLetters:
    """The dead letters of one subscription in one range of the dead-letter topic."""
    found: list[AuditedDeadLetter] = []
    records = 0
    for batch in read(*task, _CONTENT.columns):
        records += len(batch)
        for row, headers in enumerate(batch.column("headers").to_pylist()):
            death = dead_letter_origin([(one["key"], one["value"]) for one in headers or ()])
            if death is not None and (death.topic, death.subscription) == (topic, subscription):
                [entry] = record_digests(batch.slice(row, 1), _CONTENT)
                found.append(
                    AuditedDeadLetter(death.partition, death.offset, entry.offset, _without_dead_letter_headers(entry))
                )
    return AuditedDeadLetters(found, records)


def dead_letter_findings(
    topic: str, parts: Iterable[SettledPart], letters: Iterable[AuditedDeadLetter], *, are_complete: bool
) -> Iterator[AuditFinding]:
    """Compare the dead-letter events with the dead letters. Missing dead letters are reported only if `are_complete`:
    otherwise they may have been removed."""
    held: dict[tuple[int, int], list[AuditedDeadLetter]] = defaultdict(list)
    for letter in letters:
        held[letter.partition, letter.offset].append(letter)
    dead_letters = topic + DEAD_LETTER_SUFFIX
    for part in parts:
        for death in part.deaths:
            copies = held.get((part.partition, death.offset), [])
            if not copies and are_complete and death.entry is not None and not topic.endswith(DEAD_LETTER_SUFFIX):
                detail = f"became a dead letter, but is not in {dead_letters}"
                yield AuditFinding("lost", topic, part.partition, death.offset, detail=detail)
            for copy in copies[death.count :]:
                detail = f"occurs more than once in {dead_letters}"
                yield AuditFinding("duplicated", topic, part.partition, death.offset, found=copy.found, detail=detail)
            for copy in copies[: death.count]:
                if death.entry is not None and (fields := differing_fields(death.entry, copy.entry)):
                    detail = f"{', '.join(fields)} differ in {dead_letters}"
                    yield AuditFinding("altered", topic, part.partition, death.offset, found=copy.found, detail=detail)
        for offset, how in part.worked.items():
            for copy in held[part.partition, offset]:
                detail = f"is in {dead_letters}, although it was settled by {how}"
                yield AuditFinding("foreign", topic, part.partition, offset, found=copy.found, detail=detail)


def capped(findings: Iterable[AuditFinding]) -> list[AuditFinding]:
    """The findings up to the listed maximum, and one more per kind that stands for the rest."""
    kept: list[AuditFinding] = []
    more: Counter[tuple[Kind, str, int]] = Counter()
    for finding in findings:
        if len(kept) < LISTED_MAX:
            kept.append(finding)
        else:
            more[finding.kind, finding.topic, finding.partition] += finding.count
    rest = [
        AuditFinding(kind, topic, partition, count=count, detail="and more of these")
        for (kind, topic, partition), count in more.items()
    ]
    return kept + rest


def _present(read: ReadSource, task: SettledTask, start: int) -> BitMap64:
    found = BitMap64()
    if start >= task.end:
        return found
    columns = ("offset",) if task.until_ms is None else ("offset", "timestamp")
    batches = read(task.topic, PartitionRange(task.partition, start, task.end), columns)
    for batch in within_times(batches, None, task.until_ms):
        found |= BitMap64(batch.column("offset").to_pylist())
    return found


def _findings(task: SettledTask, ledger: SubscriptionLedger, judged: BitMap64) -> Iterator[AuditFinding]:
    where = task.topic.name, task.partition
    waiting = judged - ledger.settled
    attempts = {
        offset: failed.attempts
        for failed in ledger.failures
        if waiting.range_cardinality(failed.first, failed.last + 1)
        for offset in range(failed.first, failed.last + 1)
    }
    for first, last in runs(waiting):
        failed = max((attempts.get(offset, 0) for offset in range(first, last + 1)), default=0) if attempts else 0
        detail = f"is not settled for {task.subscription}{f'; deliveries that failed: {failed}' if failed else ''}"
        yield AuditFinding("lost", *where, first, last, count=last - first + 1, detail=detail)
    detail = f"was removed by retention before it was settled for {task.subscription}"
    yield from range_findings("lost", *where, runs(_removed(task, ledger)), detail)
    detail = f"was settled more than once for {task.subscription}"
    yield from range_findings("duplicated", *where, runs(ledger.twice), detail)
    detail = f"was settled for {task.subscription}, but the topic ends at {task.newest}"
    yield from range_findings("foreign", *where, runs(ledger.settled, task.newest), detail)


def _removed(task: SettledTask, ledger: SubscriptionLedger) -> BitMap64:
    """Offsets that were removed from the topic before the subscription settled them. Control records among them are not
    recognisable any more."""
    found = BitMap64()
    found.add_range(ledger.floor, max(ledger.floor, task.start))
    return found - (ledger.settled - ledger.removed)


def _dead_messages(read: ReadSource, task: SettledTask, ledger: SubscriptionLedger) -> Iterator[DeadMessage]:
    dead = sorted(offset for offset in ledger.deaths if offset < task.end)
    there: dict[int, RecordDigest] = {}
    present = [offset for offset in dead if offset >= task.start]
    if present:
        range_ = PartitionRange(task.partition, present[0], present[-1] + 1)
        wanted = pa.array(present, pa.int64())
        for batch in read(task.topic, range_, _CONTENT.columns):
            some = batch.filter(pc.is_in(batch.column("offset"), wanted))
            there |= {entry.offset: _without_dead_letter_headers(entry) for entry in record_digests(some, _CONTENT)}
    for offset in dead:
        yield DeadMessage(offset, ledger.deaths[offset], there.get(offset))


def _without_dead_letter_headers(entry: RecordDigest) -> RecordDigest:
    """Without the headers that a dead letter adds or changes, among them the dedup id."""
    added = (*DEAD_LETTER_HEADERS, REDRIVEN)
    headers = tuple((name, value) for name, value in entry.headers if name not in added)
    return msgspec.structs.replace(entry, headers=headers)
