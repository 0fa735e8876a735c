"""Replays of an acks log from any offset, with complete and incomplete snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.queues.acks_replay import AcksReplay
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import AcksEvent, Created, Deleted, Failed, Settled

Log = list[tuple[str, AcksEvent]]


def made(_name: str = "") -> PartitionSubscription:
    return PartitionSubscription(SubscriptionConfig(), lambda: 0.5)


def replayed(log: Sequence[tuple[str, AcksEvent]], start: int = 0, now_ms: int | None = None) -> AcksReplay:
    replay = AcksReplay(made, is_beginning=start == 0, now_ms=now_ms)
    for offset, (name, event) in enumerate(log[start:], start):
        replay.take(offset, name, event)
    return replay


def snapshot(log: Log, part_bytes: int = 1 << 20) -> Log:
    """Return the snapshot that the leader would append to this log."""
    subscriptions = replayed(log).subscriptions
    return [
        (name, part)
        for name, subscription in subscriptions.items()
        for part in subscription.snapshot(len(log), part_bytes, 0, len(subscriptions))
    ]


def state(replay: AcksReplay) -> object:
    return {
        name: [(part.floor, part.settled, part.failed) for part in subscription.snapshot(0, 1 << 20, 0)]
        for name, subscription in replay.subscriptions.items()
    }


def a_log() -> Log:
    return [
        ("a", Created(0, 5)),
        ("b", Created(0, 0)),
        ("a", Settled(1, "ack", [(7, 9)])),
        ("b", Failed(2, 3, 4, 1, 5000, "busy")),
        ("b", Settled(3, "ack", [(0, 1), (10, 20)])),
    ]


def test_a_replay_from_the_beginning_is_complete() -> None:
    replay = replayed(a_log())
    assert replay.is_complete
    assert {name: one.floor for name, one in replay.subscriptions.items()} == {"a": 5, "b": 2}


def test_a_replay_from_elsewhere_is_incomplete_until_it_has_read_a_snapshot() -> None:
    log = a_log()
    behind: Log = [("a", Settled(4, "ack", [(5, 6)]))]
    whole = [*log, *snapshot(log), *behind]
    for start in range(1, len(log) + 1):
        replay = replayed(whole, start)
        assert replay.is_complete
        assert replay.snapshot_offset == len(log)
        assert state(replay) == state(replayed([*log, *behind]))
    assert not replayed(whole, len(whole) - 1).is_complete


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_a_snapshot_with_a_missing_part_is_ignored(part_bytes: int) -> None:
    log = a_log()
    parts = snapshot(log, part_bytes)
    for missing in range(len(parts)):
        broken = [*log, *parts[:missing], *parts[missing + 1 :]]
        assert not replayed(broken, len(log)).is_complete
        assert replayed(broken).snapshot_offset is None
    begun = [*log, *parts[:-1], ("a", Settled(4, "ack", [(5, 6)]))]
    again = [*begun, *snapshot(begun)]
    replay = replayed(again, len(log))
    assert (replay.is_complete, replay.snapshot_offset) == (True, len(begun))


def test_a_replay_that_begins_inside_a_snapshot_waits_for_the_next() -> None:
    log = a_log()
    whole = [*log, *snapshot(log, 1)]
    for start in range(len(log) + 1, len(whole)):
        assert not replayed(whole, start).is_complete
    again = [*whole, *snapshot(log)]
    assert replayed(again, len(log) + 1).is_complete


def test_subscriptions_deleted_before_a_snapshot_are_not_in_it() -> None:
    log = [*a_log(), ("a", Deleted(9))]
    assert set(replayed([*log, *snapshot(log)], len(log)).subscriptions) == {"b"}
    behind = [*log, *snapshot(log), ("b", Deleted(9)), ("c", Created(9, 1))]
    assert set(replayed(behind, len(log)).subscriptions) == {"c"}


def test_a_snapshot_does_not_change_a_complete_replay() -> None:
    log = a_log()
    replay = replayed([*log, *snapshot(log)])
    assert state(replay) == state(replayed(log))
    assert replay.snapshot_offset == len(log)


OFFSETS = st.integers(0, 30)
RANGES = st.tuples(OFFSETS, OFFSETS).map(lambda pair: (min(pair), max(pair)))
NAMES = st.sampled_from(["a", "b"])
EVENTS = st.one_of(
    st.builds(lambda floor: Created(0, floor), OFFSETS),
    st.builds(lambda range_: Settled(0, "ack", [range_]), RANGES),
    st.builds(lambda range_, attempts: Failed(0, range_[0], range_[1], attempts, 100, "r"), RANGES, st.integers(1, 4)),
    st.just(Deleted(0)),
)


@given(st.lists(st.tuples(NAMES, EVENTS), max_size=20), st.data())
def test_every_complete_replay_gives_the_same_state(events: Log, data: st.DataObject) -> None:
    log: Log = []
    for name, event in events:
        if isinstance(event, Created) == (name in replayed(log).subscriptions):
            continue  # only missing subscriptions are created, and only existing ones change
        log.append((name, event))
        if data.draw(st.booleans()):
            log += snapshot(log, data.draw(st.sampled_from([1, 1 << 20])))
    expected = replayed(log)
    for start in range(1, len(log) + 1):
        replay = replayed(log, start)
        if replay.is_complete:
            assert state(replay) == state(expected)


@pytest.mark.parametrize("is_in_snapshot", [False, True], ids=["event", "snapshot"])
def test_a_retry_does_not_wait_for_the_clock_of_an_earlier_leader(is_in_snapshot: bool) -> None:
    """I35; seed 1334: a leader whose clock was a minute ahead had recorded a delay of 100 ms."""
    log: Log = [("a", Created(60_000, 0)), ("a", Failed(60_000, 0, 0, 1, 60_100, "busy"))]
    later = [(name, msgspec.structs.replace(part, at=60_000)) for name, part in snapshot(log)]
    start = len(log) if is_in_snapshot else 0
    subscription = replayed(log + later, start, now_ms=500).subscriptions["a"]
    assert subscription.next_due_ms() == 600


def test_a_retry_recorded_in_the_past_keeps_its_due_time() -> None:
    log: Log = [("a", Created(100, 0)), ("a", Failed(100, 0, 0, 1, 900, "busy"))]
    assert replayed(log, now_ms=500).subscriptions["a"].next_due_ms() == 900
