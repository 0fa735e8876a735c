"""The history of a queue from the output of its clients: what was published, and every delivery. Pure.

Times are milliseconds of the wall clock. An operation without an end may have taken effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.queue_client import LATE


@dataclass(slots=True)
class Publish:
    value: str
    began: int
    due: int | None
    ended: int | None = None
    """when it was acknowledged, if it was"""
    is_cancelling: bool = False
    cancelled: int | None = None


@dataclass(slots=True)
class Delivery:
    """One lease that a client received; `granted` is when the broker granted it."""

    client: str
    value: str
    id: str
    attempt: int
    granted: int
    until: int
    how: str | None = None
    delay_ms: int | None = None
    began: int = 0
    settled: int | None = None
    """when the settle was confirmed, if it was"""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class DeadCopy:
    """One dead letter: its message, the number of deliveries, and its time."""

    value: str
    origin: str
    attempts: int
    died: int


@dataclass
class QueueHistory:
    """`log`: the values in the topic, by message id. All of them were settled when the clients ended."""

    publishes: dict[str, Publish] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    log: Mapping[str, str] = field(default_factory=dict)
    dead: Sequence[DeadCopy] = ()
    wrong_clocks: Sequence[tuple[int, int]] = ()
    """the periods in which the wall clock of a broker was wrong"""

    def is_clock_right(self, began: int, ended: int) -> bool:
        """Return whether the brokers' wall clocks were correct in this whole period."""
        return all(ended < wrong_from or until < began for wrong_from, until in self.wrong_clocks)

    def counts(self, queue: str) -> dict[str, int]:
        """Return the counts for the report, under the name of the queue."""
        acknowledged = [one for one in self.publishes.values() if one.ended is not None]
        settles = [one for one in self.deliveries if one.how is not None]
        rejected = Counter(one.how == LATE for one in settles if one.is_refused)
        confirmed = sum(one.settled is not None for one in settles)
        return {
            f"{queue}: messages acknowledged": len(acknowledged),
            f"{queue}: of these delayed": sum(one.due is not None for one in acknowledged),
            f"{queue}: of these cancelled in time": sum(one.cancelled is not None for one in acknowledged),
            f"{queue}: messages in the topic": len(self.log),
            f"{queue}: deliveries": len(self.deliveries),
            f"{queue}: most deliveries of one message": max(
                Counter(one.id for one in self.deliveries).values(), default=0
            ),
            f"{queue}: acks, nacks and rejects confirmed": confirmed,
            f"{queue}: acks after the lease rejected": rejected[True],
            f"{queue}: others rejected": rejected[False],
            f"{queue}: others without a response": len(settles) - confirmed - rejected.total(),
            f"{queue}: dead letters": len(self.dead),
        }


def queue_history_of(
    transcripts: Mapping[str, Iterable[list[Any]]], log: Mapping[str, str], dead: Sequence[DeadCopy]
) -> QueueHistory:
    history = QueueHistory(log=log, dead=dead)
    for client, entries in transcripts.items():
        _add(history, client, entries)
    return history


def _add(history: QueueHistory, client: str, entries: Iterable[list[Any]]) -> None:
    deliveries: dict[int, Delivery] = {}
    publishes = history.publishes
    for entry in entries:
        match entry:
            case ["publish", began, value, due]:
                publishes[value] = Publish(value, began, due)
            case ["published", ended, value]:
                publishes[value].ended = ended
            case ["cancel", _, value]:
                publishes[value].is_cancelling = True
            case ["cancelled", ended, value]:
                publishes[value].cancelled = ended
            case ["lease", number, value, message_id, attempt, granted, until]:
                deliveries[number] = Delivery(client, value, message_id, attempt, granted, until)
            case ["settle", number, began, how, delay_ms]:
                one = deliveries[number]
                one.how, one.delay_ms, one.began = how, delay_ms, began
            case ["settled", number, ended]:
                deliveries[number].settled = ended
            case ["refused", number, _, _]:
                deliveries[number].is_refused = True
    history.deliveries += deliveries.values()
