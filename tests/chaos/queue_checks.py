"""Check the history of a queue, after everything in it was settled. Pure.

- Each rule returns one sentence for each violation.
- A delivery counts from when the broker granted the lease, because an isolated network may delay its response for long.
- Two rules do not hold while the wall clock of a broker is wrong. Delays end by the wall clock of the leader, as
  docs/delays.md says, so a message may be early; and dead letters have its time. Leases and the delays of nacks must
  not be affected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from tests.chaos.checks import first_few
from tests.chaos.queue_client import DELIVERIES_MAX, LATE, ORDINARY
from tests.chaos.queue_history import Delivery, QueueHistory
from tests.chaos.transcript import Transcript

SLACK_MS = 10
"""All clocks are the machine's, but processes round milliseconds differently."""


def check_queue(history: QueueHistory) -> list[str]:
    """Apply all rules; return the first sentences of each."""
    return [sentence for rule in RULES for sentence in first_few(rule(history), rule.__name__.replace("_", " "))]


def check_queue_clients(transcripts: Mapping[str, Transcript], publisher: str) -> list[str]:
    """Report clients that failed. Members lose the cluster now and then, and continue; a publisher reports only
    messages that it gave up."""
    return [
        *(f"{name} ended before it was stopped" for name, one in transcripts.items() if not one.is_complete),
        *first_few([f"{publisher}: {error}" for error in transcripts[publisher].errors], "not published"),
    ]


def queue_log_is_wrong(history: QueueHistory) -> list[str]:
    """An acknowledged message, delayed or not, is in the topic once; any other one at most once."""
    found = list[str]()
    times = Counter(history.log.values())
    for value, count in times.items():
        if value not in history.publishes:
            found.append(f"never published: {value!r} is in the topic")
        elif count > 1:
            found.append(f"doubled: {value!r} is in the topic {count} times")
    for one in history.publishes.values():
        if one.cancelled is not None and times[one.value]:
            found.append(f"came though it was cancelled: {one.value!r}")
        elif one.ended is not None and not one.is_cancelling and not times[one.value]:
            found.append(f"lost: {one.value!r} was acknowledged and is not in the topic")
    return found


def never_settled(history: QueueHistory) -> list[str]:
    """Every message in the topic was delivered and settled, or is a dead letter."""
    delivered = {one.id for one in history.deliveries}
    settled = {one.id for one in history.deliveries if one.how in ("ack", "reject")}
    dead = {one.origin for one in history.dead}
    return [
        *(f"never delivered: {value!r}, {one}" for one, value in history.log.items() if one not in delivered | dead),
        *(
            f"never settled: {value!r}, {one}, was delivered, and never acked or rejected"
            for one, value in history.log.items()
            if one in delivered and one not in settled | dead
        ),
    ]


def delivered_after_it_was_settled(history: QueueHistory) -> list[str]:
    """No message is delivered after its ack or reject was confirmed."""
    confirmed = _first_confirmed(history, "ack", "reject")
    return [
        f"delivered again: {one.value!r}, {one.id}, was leased by {one.client} {one.granted - settle.settled} ms after "
        f"the {settle.how} of {settle.client} was confirmed"
        for one in history.deliveries
        if (settle := confirmed.get(one.id)) is not None
        and settle.settled is not None
        and one.granted > settle.settled + SLACK_MS
    ]


def settled_after_the_lease(history: QueueHistory) -> list[str]:
    return [
        f"late ack accepted: {one.value!r}, {one.id}, of {one.client}, {one.began - one.until} ms after its lease"
        for one in history.deliveries
        if one.how == LATE and one.settled is not None and one.began > one.until
    ]


def delivered_too_early(history: QueueHistory) -> list[str]:
    """No message is delivered before it is due, nor before the delay of a confirmed nack has passed."""
    found = list[str]()
    by_id = defaultdict[str, list[Delivery]](list)
    for one in history.deliveries:
        by_id[one.id].append(one)
        published = history.publishes.get(one.value)
        if published is None or published.due is None or not history.is_clock_right(published.began, published.due):
            continue
        due = published.due
        if one.granted < due - SLACK_MS:
            found.append(f"too early: {one.value!r}, {one.id}, was leased {due - one.granted} ms before it was due")
    for nack in history.deliveries:
        if nack.settled is None or not nack.delay_ms:
            continue
        back = nack.began + nack.delay_ms
        found += [
            f"back too early: {one.value!r}, {one.id}, was leased {back - one.granted} ms before its nack allowed"
            for one in by_id[nack.id]
            if nack.settled + SLACK_MS < one.granted < back - SLACK_MS
        ]
    return found


def dead_letters_are_wrong(history: QueueHistory) -> list[str]:
    """Poison and stubborn messages are dead letters, once, and no others are."""
    found = list[str]()
    copies = Counter(one.origin for one in history.dead)
    found += [f"dead letter doubled: {one} is there {count} times" for one, count in copies.items() if count > 1]
    confirmed = _first_confirmed(history, "ack")
    for one in history.dead:
        if history.log.get(one.origin) != one.value:
            found.append(f"dead letter of nothing: {one.value!r} says that it comes from {one.origin}")
        elif (
            (ack := confirmed.get(one.origin)) is not None
            and not history.wrong_clocks
            and one.died > (ack.settled or 0) + SLACK_MS
        ):
            # Before that it may: a client that repeats an ack takes it for done when it finds the message settled.
            found.append(f"died after its ack was confirmed: {one.value!r}, {one.origin}")
        elif _is_ordinary(one.value) and one.attempts < DELIVERIES_MAX:
            found.append(f"dead letter that was not rejected: {one.value!r}, after {one.attempts} deliveries")
    return found + [
        f"dead letter lost: {value!r}, {one}, is settled and not among the dead letters"
        for one, value in history.log.items()
        if not _is_ordinary(value) and one not in copies
    ]


def _first_confirmed(history: QueueHistory, *hows: str) -> dict[str, Delivery]:
    """Return, by message id, the first confirmed settle of one of these kinds."""
    confirmed = [one for one in history.deliveries if one.settled is not None and one.how in hows]
    return {one.id: one for one in sorted(confirmed, key=lambda one: one.settled or 0, reverse=True)}


def _is_ordinary(value: str) -> bool:
    return value.startswith(f"{ORDINARY} ")


RULES: tuple[Callable[[QueueHistory], list[str]], ...] = (
    queue_log_is_wrong,
    never_settled,
    delivered_after_it_was_settled,
    settled_after_the_lease,
    delivered_too_early,
    dead_letters_are_wrong,
)
