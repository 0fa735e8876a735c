"""Runs one subscription like a broker: a log of its events, messages to offer, and a manual clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap64

from headrace.machines.queues.acks_replay import AcksReplay
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.machines.queues.subscription_values import (
    Ack,
    ClassifiedMessage,
    GrantedRange,
    Nack,
    Range,
    Reject,
    Settlement,
)
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Settled,
    SnapshotEvent,
    decode_event,
    encode_event,
)

LEASE_MS = 30_000
NAME = "workers"


def message(
    offset: int,
    *,
    priority: int = 4,
    key: bytes | None = None,
    arrived_ms: int = 0,
    expires_ms: int | None = None,
    matches: bool = True,
) -> ClassifiedMessage:
    return ClassifiedMessage(offset, priority, key, arrived_ms, expires_ms, matches)


def contents(machine: PartitionSubscription) -> tuple[int, list[int], list[object], list[object]]:
    """Return its durable state. (A bitmap has more than one serialization.)"""
    parts = machine.snapshot(0, 1_000_000, 0)
    settled = [offset for part in parts if part.settled for offset in BitMap64.deserialize(part.settled)]
    failed: list[object] = [one for part in parts for one in part.failed]
    return machine.floor, settled, failed, [one for part in parts for one in part.redriven]


class SubscriptionDriver:
    """`chance` is fixed, so that back-off is predictable."""

    def __init__(
        self, floor: int = 0, overrides: Mapping[str, str] | None = None, *, chance: float = 0.0, **named: str
    ) -> None:
        settings = named | dict(overrides or {})
        self.config = SubscriptionConfig.build({name.replace("_", "."): value for name, value in settings.items()})
        self.chance = chance
        self.now_ms = 1_000_000
        self.end = floor
        self.log: list[tuple[bytes, bytes]] = []
        self.machine = self.fresh()
        self.store([Created(self.now_ms, floor)])

    def fresh(self) -> PartitionSubscription:
        return PartitionSubscription(self.config, lambda: self.chance)

    def store(self, events: Iterable[AcksEvent]) -> None:
        for event in events:
            self.log.append(encode_event(NAME, event))
            self.machine.apply(event)

    def write_snapshot(self, chunk_bytes_max: int = 1_000_000) -> list[SnapshotEvent]:
        parts = self.machine.snapshot(len(self.log), chunk_bytes_max, self.now_ms)
        self.log += [encode_event(NAME, part) for part in parts]
        return parts

    def replayed(self, start: int = 0) -> PartitionSubscription:
        replay = AcksReplay(lambda _name: self.fresh(), is_beginning=start == 0)
        for offset, (key, value) in enumerate(self.log[start:], start):
            replay.take(offset, *decode_event(key, value))
        assert replay.is_complete
        return replay.subscriptions[NAME]

    def restart(self, start: int = 0) -> None:
        self.machine = self.replayed(start)

    def offer(self, *messages: ClassifiedMessage, end: int | None = None) -> None:
        self.end = messages[-1].offset + 1 if end is None else end
        self.store(self.machine.offer(messages, self.end, self.now_ms))

    def choose(self, count: int = 1_000) -> list[Range]:
        return self.machine.choose(self.now_ms, count, self.end)

    def lease(self, count: int = 1_000, member: str = "a", lease_ms: int | None = None) -> list[GrantedRange]:
        return self.machine.grant(self.choose(count), member, self.now_ms, lease_ms)

    def settle(
        self, first: int, last: int, how: Settlement, member: str = "a", attempt: int | None = None
    ) -> list[AcksEvent]:
        events = self.machine.settle(first, last, how, member, attempt, self.now_ms)
        self.store(events)
        return events

    def ack(self, first: int, last: int | None = None, member: str = "a") -> None:
        self.settle(first, first if last is None else last, Ack(), member)

    def nack(self, first: int, last: int | None = None, delay_ms: int | None = None, reason: str = "") -> None:
        self.settle(first, first if last is None else last, Nack(delay_ms, reason))

    def reject(self, first: int, reason: str = "") -> None:
        self.settle(first, first, Reject(reason))

    def wait(self, ms: int) -> list[AcksEvent]:
        """Advance the clock and run the timer."""
        self.now_ms += ms
        events = self.machine.expire(self.now_ms)
        self.store(events)
        return events

    def dead_letter(self) -> list[int]:
        """Settle dying messages as dead letters."""
        settled = []
        for dying in self.machine.dying():
            self.store([Settled(self.now_ms, "dead", [(dying.offset, dying.offset)])])
            settled.append(dying.offset)
        return settled
