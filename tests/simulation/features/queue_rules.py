"""The rules of a queue, as independent functions. A message is identified by (partition, offset)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tests.simulation.features.feature import Sent, Stored
from tests.simulation.features.queue_clients import Delivered, QueueLog
from tests.simulation.queue_scenario import Worker

from headrace.model.message_headers import DEAD_OFFSET, DEAD_PARTITION, DEDUP_ID, PRIORITY
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History

Place = tuple[int, int]
ROUNDING_SECONDS = 0.002


def dead_places(letters: Sequence[Stored]) -> set[Place]:
    """Return the messages of which dead letters are copies."""
    headers = [dict(letter.headers) for letter in letters]
    return {(int(one[DEAD_PARTITION] or b""), int(one[DEAD_OFFSET] or b"")) for one in headers}


def come_back(workers: Sequence[Worker]) -> Iterator[Anomaly]:
    acked = {receipt.id: receipt for worker in workers for receipt in worker.acked}
    for worker in workers:
        for later in worker.delivered:
            ended = acked.get(later.id)
            if ended is not None and (later.epoch, later.attempt) > (ended.epoch, ended.attempt):
                yield Anomaly("acked message came back", later.id.partition, f"{ended}, then {later}")


def not_settled(
    history: History, log: QueueLog, dead: Collection[Place], is_wanted: Callable[[bytes], bool]
) -> Iterator[Anomaly]:
    """The backlog is empty, so every message must have a dead letter or an ack that was at least attempted."""
    settled = set(log.settles)
    for send in history.sends:
        place = send.partition, send.offset
        if send.is_ok and is_wanted(send.value) and place not in settled and place not in dead:
            yield Anomaly("never settled", send.partition, f"{send.value[:30]!r} at {send.offset}")


def not_dead(log: QueueLog, dead: Collection[Place]) -> Iterator[Anomaly]:
    for partition, offset in log.rejected:
        if (partition, offset) not in dead:
            yield Anomaly("rejected, but no dead letter", partition, f"offset {offset}")


def dead_twice(letters: Sequence[Stored]) -> Iterator[Anomaly]:
    for name, count in Counter(dict(letter.headers)[DEDUP_ID] for letter in letters).items():
        if count > 1:
            yield Anomaly("dead letter stored twice", 0, f"{name!r} is there {count} times")


def delivered_unwanted(log: QueueLog, history: History, is_wanted: Callable[[bytes], bool]) -> Iterator[Anomaly]:
    for one in log.delivered:
        if one.value in history.aborted:
            yield Anomaly("aborted message delivered", one.place[0], f"{one.value[:30]!r} at {one.place[1]}")
        if not is_wanted(one.value):
            yield Anomaly("filtered message delivered", one.place[0], f"{one.value[:30]!r} at {one.place[1]}")


def out_of_key_order(log: QueueLog, sent: Mapping[bytes, Sent], dead: Collection[Place]) -> Iterator[Anomaly]:
    """A message may be delivered only when all earlier ones of its key are settled, or may be."""
    offsets = defaultdict[tuple[bytes | None, int], list[int]](list)
    for one in sent.values():
        if one.send is not None and one.send.is_ok:
            offsets[one.draft.key, one.send.partition].append(one.send.offset)
    first_settled: dict[Place, int] = {}
    for number, place in enumerate(log.settles):
        first_settled.setdefault(place, number)
    for given in log.delivered:
        partition, offset = given.place
        for earlier in offsets[given.key, partition]:
            place = partition, earlier
            is_open = first_settled.get(place, len(log.settles)) >= given.settles_before
            if earlier < offset and is_open and place not in dead:
                yield Anomaly("out of key order", partition, f"{offset} was delivered before {earlier} was settled")


def overtaken(log: QueueLog, sent: Mapping[bytes, Sent], slacks_ms: Sequence[int]) -> Iterator[Anomaly]:
    """A message waits for a later one of higher priority only if that arrived within the difference of their slacks.

    The broker counts a message as arrived when it reads it at the latest, and not before the previous lease was sent.
    Producers' clocks may be wrong, so the time between two leases is added. Leases may be seconds apart when a response
    is lost. A message in its second delivery did not wait: the response with its first delivery was lost.
    """
    first = dict[bytes, Delivered]()
    for given in log.delivered:
        first.setdefault(given.value, given)
    for given in first.values():
        if given.receipt.attempt > 1:
            continue
        for before in first.values():
            is_later = before.place[0] == given.place[0] and before.place[1] > given.place[1]
            has_overtaken = before.granted_seconds < given.granted_seconds and _priority(before) > _priority(given)
            if not is_later or not has_overtaken:
                continue
            leases = [one for one in log.delivered if _window(one) == _window(before)]
            read_by = min(one.granted_seconds for one in leases if one.place[1] >= given.place[1])
            began = sent[before.value].began_seconds
            earlier = [one.granted_seconds for one in leases if one.granted_seconds < began]
            late = max(earlier, default=0.0) - read_by
            if late > (slacks_ms[_priority(given)] - slacks_ms[_priority(before)]) / 1000 + ROUNDING_SECONDS:
                detail = f"offset {given.place[1]} waited for {before.place[1]}, which was sent {late:.1f} s later"
                yield Anomaly("starved", given.place[0], detail)
                break


def _window(given: Delivered) -> tuple[int, int]:
    """The part of the partition that one leader has read; the next leader reads it again."""
    return given.place[0], given.receipt.epoch


def _priority(given: Delivered) -> int:
    return int(given.headers[PRIORITY] or b"")
