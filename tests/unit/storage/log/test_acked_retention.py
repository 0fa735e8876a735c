"""retention.mode=acked: what every subscription has settled goes, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.storage.log_harness import make_batch
from tests.unit.storage.queue_log_harness import SMALL, QueueLogHarness

from headrace.machines.queues.subscription import PartitionSubscription
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.storage.config import MIB
from headrace.storage.log.acked_retention import SettledSurveyJob, make_survey_job, survey_settled
from headrace.wire.batches.compression import ZSTD
from headrace.wire.state_records.acks_records import Reconciled, Settled, SnapshotEvent, Sought


def filled(count: int = 100, **options: int) -> QueueLogHarness:
    bench = QueueLogHarness()
    bench.messages(count, **options)
    bench.roll()
    return bench


def test_one_old_message_stays_and_the_space_of_the_others_is_free_again() -> None:
    bench = filled()
    before_bytes = bench.log.size_bytes
    bench.create("s")
    bench.settle("s", (0, 6), (8, 99))
    assert bench.enforce_retention()
    assert bench.log.start_offset == 7
    assert [(line.offset, line.value) for line in bench.lines()] == [(7, b"00007" + b"." * 100)]
    assert bench.log.size_bytes < before_bytes / 50
    assert len(bench.log.segments) <= 3, "what is left of many segments is in few"


def test_without_a_subscription_nothing_is_removed() -> None:
    bench = filled()
    assert not bench.enforce_retention()
    bench.create("s")
    bench.settle("s", (0, 99))
    bench.delete("s")
    assert not bench.enforce_retention()
    assert len(bench.offsets) == 100


def test_a_message_stays_until_all_subscriptions_have_settled_it() -> None:
    bench = filled()
    bench.create("a", "b")
    bench.settle("a", (0, 99))
    bench.settle("b", (10, 89))
    assert not bench.enforce_retention()
    assert {*range(10), *range(90, 100)} <= {*bench.offsets} <= {*range(22), *range(78, 100)}
    bench.settle("b", (0, 4))
    assert bench.enforce_retention()
    assert bench.log.start_offset == 5


def test_a_subscription_does_not_need_messages_before_its_start() -> None:
    bench = filled()
    bench.create("late", floor=60)
    assert bench.enforce_retention()
    assert bench.log.start_offset == 60


def test_only_what_is_committed_counts() -> None:
    bench = filled()
    bench.create("s")
    bench.settle("s", (0, 49))
    committed_offset = bench.acks.end_offset
    bench.settle("s", (50, 99))
    assert bench.enforce_retention(committed_offset=committed_offset)
    assert bench.log.start_offset == 50


def test_a_follower_makes_room_but_does_not_move_the_start() -> None:
    bench = filled()
    bench.create("s")
    bench.settle("s", (0, 49), (51, 99))
    assert not bench.enforce_retention(leads=False)
    assert bench.log.start_offset == 0
    assert 50 in bench.offsets
    assert bench.offsets[-1] == 50, "what lies above the floor"
    assert set(range(51, 99)).isdisjoint(bench.offsets)
    assert bench.offsets[0] == 0, "whole segments below it go with the start, when the leader tells"


def test_a_subscription_that_seeks_back_receives_the_remaining_messages() -> None:
    bench = filled()
    bench.create("s")
    bench.settle("s", (0, 99))
    bench.seek("s", 20)
    assert bench.enforce_retention()
    assert bench.offsets == [*range(20, 100)], "the seek came before anybody looked"


def test_a_segment_is_left_alone_until_half_of_what_is_in_it_is_settled() -> None:
    bench = filled(20, size_bytes=1)
    segment, _ = bench.log.segments
    bench.create("s")
    bench.settle("s", (1, 10))
    bench.enforce_retention()
    assert bench.log.segments[0] is segment
    bench.settle("s", (11, 11))
    bench.enforce_retention()
    assert bench.offsets == [0, *range(12, 20)]
    cleaned = bench.log.segments[0]
    bench.settle("s", (12, 15))
    bench.enforce_retention()
    assert bench.log.segments[0] is cleaned, "of nine, four are settled"
    bench.settle("s", (16, 16))
    bench.enforce_retention()
    assert bench.offsets == [0, 17, 18, 19]


def test_an_unchanged_log_is_not_surveyed_again() -> None:
    bench = filled()
    bench.create("s")
    bench.settle("s", (1, 99))
    for _ in range(3):
        bench.enforce_retention()
    passes, read = bench.store.cleaner.passes, bench.world.disk.operations
    bench.enforce_retention()
    assert (bench.store.cleaner.passes, bench.world.disk.operations) == (passes, read)


def test_what_was_merged_is_not_counted_twice() -> None:
    bench = filled()
    bench.create("s")
    bench.settle("s", (1, 41), (44, 99))
    bench.enforce_retention()
    bench.settle("s", (42, 43))
    bench.enforce_retention()
    passes = bench.store.cleaner.passes
    for offset in range(100, 105):
        bench.messages(1)
        bench.flush()
        bench.settle("s", (offset, offset))
        bench.enforce_retention()
    assert bench.store.cleaner.passes == passes
    assert 0 in bench.offsets


def test_the_active_segment_ends_when_most_of_it_is_settled_and_it_is_worth_while() -> None:
    bench = QueueLogHarness(config=replace(SMALL, segment_bytes=8 * MIB))
    bench.messages(3, size_bytes=MIB // 2)
    bench.flush()
    bench.create("s")
    bench.settle("s", (1, 1))
    bench.enforce_retention()
    assert len(bench.log.segments) == 1, "one of three is not most of them"
    bench.settle("s", (2, 2))
    bench.enforce_retention()
    assert len(bench.log.segments) == 2
    bench.enforce_retention()
    assert bench.offsets == [0]
    assert bench.log.size_bytes < MIB


def test_a_small_active_segment_goes_on() -> None:
    bench = filled(3)
    bench.messages(1)
    bench.flush()
    bench.create("s")
    bench.settle("s", (0, 3))
    assert bench.enforce_retention()
    assert bench.offsets == []
    assert bench.log.active.size


@pytest.mark.parametrize("compression", [0, ZSTD])
def test_a_batch_loses_its_settled_records_only(compression: int) -> None:
    bench = QueueLogHarness()
    for _ in range(6):
        bench.put(*((b"k", b"v" * 100) for _ in range(10)), compression=compression)
    bench.roll()
    before = bench.lines()
    bench.create("s")
    bench.settle("s", *((base + 1, base + 8) for base in range(0, 60, 10)))
    bench.enforce_retention()
    assert bench.lines() == [line for line in before if line.offset % 10 in (0, 9)]
    assert [header.last_offset_delta for _, header in bench.batches()] == [9] * 6


def test_the_last_batch_of_a_producer_keeps_its_sequence() -> None:
    bench = filled(40, producer_id=5)
    bench.create("s")
    bench.messages(1)
    bench.roll()
    bench.settle("s", (1, 40))
    bench.enforce_retention()
    assert bench.offsets == [0]
    last = [header for _, header in bench.batches() if header.producer_id == 5][-1]
    assert (last.base_offset, last.base_sequence, last.record_count) == (39, 39, 0)


def test_markers_stay_with_what_they_end() -> None:
    bench = QueueLogHarness()
    bench.put((None, b"kept"), producer_id=7, in_transaction=True)
    bench.messages(20)
    marker = bench.end_transaction(7, is_commit=False)
    bench.messages(20)
    bench.roll()
    bench.create("s")
    bench.settle("s", (1, 41))
    for _ in range(3):
        bench.enforce_retention()
        bench.settle("s", (1, 1))
    assert marker in [header.base_offset for _, header in bench.batches() if header.is_control]
    assert [one.last_offset for one in bench.state.aborted(0, 100)] == [marker]
    assert 0 in bench.offsets


def test_an_open_transaction_is_waited_for() -> None:
    bench = filled(20)
    bench.put((None, b"open"), producer_id=7, in_transaction=True)
    bench.messages(20)
    bench.roll()
    bench.create("s")
    bench.settle("s", (1, 19), (21, 40))
    bench.enforce_retention()
    assert 0 in bench.offsets
    assert [*range(20, 41)] == [offset for offset in bench.offsets if offset >= 20]


def test_removed_messages_stay_removed_after_a_restart() -> None:
    for end in ("kill", "cut_power"):
        bench = filled()
        bench.create("s")
        bench.settle("s", (0, 6), (8, 49), (51, 99))
        bench.enforce_retention()
        getattr(bench, end)()
        bench.open()
        assert bench.log.quarantined is None
        assert bench.offsets == [7, 50]
        bench.messages(5)
        bench.roll()
        bench.settle("s", (100, 103))
        bench.enforce_retention()
        assert bench.offsets == [7, 50, 104]


# What is read of the acks log


def survey(bench: QueueLogHarness, job: SettledSurveyJob | None = None) -> tuple[int, list[int]]:
    """The floor, and what is not settled above it."""
    job = job or make_survey_job(bench.log, bench.acks, bench.acks.end_offset)
    found = survey_settled(bench.world.disk, lambda _: None, job)
    assert found is not None
    offsets = found.settled.offsets()
    unsettled = [offset for first, last in offsets.unsettled(0, job.bounds[-1]) for offset in range(first, last + 1)]
    assert sum(found.unsettled) == len([offset for offset in unsettled if offset >= job.bounds[0]])
    return found.settled.floor, unsettled


def snapshot(bench: QueueLogHarness, snapshot_id: int) -> None:
    """As the leader writes one."""
    for name, settled in bench.settled.items():
        subscription = PartitionSubscription(SubscriptionConfig(), lambda: 0.0)
        ranges = [(offset, offset) for offset in sorted(settled)]
        subscription.apply(Settled(at=1, how="ack", ranges=ranges))
        parts = subscription.snapshot(snapshot_id, 1000, 1, len(bench.settled))
        bench.tell(name, *(replace(part, epoch=0) for part in parts))


def test_what_was_before_the_last_snapshot_need_not_be_there() -> None:
    bench = filled(30)
    bench.create("a", "b")
    bench.settle("a", (0, 5), (10, 12))
    bench.settle("b", (0, 20))
    bench.acks.roll()
    snapshot(bench, 1)
    bench.settle("a", (6, 6))
    bench.run(bench.acks.advance_start(bench.acks.segments[-1].base_offset))
    floor, unsettled = survey(bench)
    assert floor == 7
    assert unsettled == [7, 8, 9, *range(13, 30)]


@pytest.mark.parametrize("leads", [False, True])
def test_messages_of_a_later_leader_epoch_stay_until_the_acks_log_is_reconciled(leads: bool) -> None:
    """An unclean election has cut the log at 50; what was settled from there on was other messages."""
    bench = filled()
    bench.create("s")
    bench.settle("s", (0, 0), (2, 99))  # a follower only rewrites above the floor, so one message stays open
    bench.run(bench.log.truncate(50))
    for number in range(50, 100):
        batch, header = make_batch(b"%05d" % number + b"." * 100)
        bench.log.append(batch, header, 1)
    bench.log.roll()
    bench.run(bench.store.flusher.flush(bench.log))
    assert not bench.enforce_retention(leads=leads)
    assert bench.log.start_offset == 0
    assert bench.offsets == list(range(100))
    bench.tell("s", Sought(at=1, floor=50), Reconciled(at=1, epoch=1))
    assert bench.enforce_retention(leads=leads) == leads
    assert bench.log.start_offset == 50 * leads
    assert bench.offsets[-50:] == list(range(50, 100))


@pytest.mark.parametrize("leads", [True, False])
def test_messages_stay_that_come_to_settled_offsets_while_a_survey_is_taken(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey is of the log as it was; what it calls settled was cut off meanwhile."""
    bench = filled()
    bench.create("s")
    bench.settle("s", (0, 0), (2, 99))
    cleaner = bench.store.cleaner
    run_in_worker_process = cleaner.run_in_worker_process

    async def cut_meanwhile(*given: Any) -> Any:
        survey = await run_in_worker_process(*given)
        monkeypatch.undo()
        await bench.log.truncate(50)
        for number in range(50, 100):
            batch, header = make_batch(b"%05d" % number + b"." * 100)
            bench.log.append(batch, header, 1)
        bench.log.roll()
        await bench.store.flusher.flush(bench.log)
        return survey

    monkeypatch.setattr(cleaner, "run_in_worker_process", cut_meanwhile)
    assert not bench.enforce_retention(leads=leads)
    assert bench.offsets == list(range(100))


def test_with_an_incomplete_snapshot_nothing_is_removed() -> None:
    bench = filled(30)
    bench.create("a", "b")
    bench.acks.roll()
    bench.tell("a", SnapshotEvent(at=1, id=1, part=1, parts=1, subscriptions=2, floor=30))
    bench.run(bench.acks.advance_start(bench.acks.segments[-1].base_offset))
    assert survey_settled(bench.world.disk, lambda _: None, make_survey_job(bench.log, bench.acks, 100)) is None
    assert not bench.enforce_retention()
    assert len(bench.offsets) == 30


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("settle"), st.sampled_from("abc"), st.integers(0, 49), st.integers(0, 9)),
            st.tuples(st.just("seek"), st.sampled_from("abc"), st.integers(0, 49), st.just(0)),
            st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(0), st.just(0)),
            st.tuples(st.just("snapshot"), st.just(""), st.just(0), st.just(0)),
            st.tuples(st.just("roll"), st.just(""), st.just(0), st.just(0)),
            st.tuples(st.just("look"), st.just(""), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_whatever_subscriptions_do_what_they_need_is_there(doings: list[tuple[str, str, int, int]]) -> None:
    bench = filled(60, size_bytes=60, per_batch=3)
    bench.create("a", "b", "c")
    never_idle = set(range(60))  # a subscription needed it at every survey
    for number, (doing, name, first, more) in enumerate(doings):
        if doing == "settle" and name in bench.settled:
            bench.settle(name, (first, first + more))
        elif doing == "seek" and name in bench.settled:
            bench.seek(name, first)
        elif doing == "delete" and len(bench.settled) > 1 and name in bench.settled:
            bench.delete(name)
        elif doing == "snapshot":
            snapshot(bench, number)
        elif doing == "roll" and bench.acks.active.size:
            bench.acks.roll()
        elif doing == "look":
            bench.enforce_retention()
            never_idle.intersection_update(bench.needed)
        assert never_idle <= set(bench.offsets)
    bench.enforce_retention()
    assert survey(bench) == (bench.needed[0] if bench.needed else 60, bench.needed)
    assert bench.log.start_offset >= survey(bench)[0]
