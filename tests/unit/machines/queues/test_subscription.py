"""Leases, settlements, retries and limits of a subscription that depends on offsets only."""

from __future__ import annotations

import pytest
from tests.unit.machines.queues.subscription_driver import LEASE_MS, SubscriptionDriver, contents

from headrace.machines.queues.subscription_values import (
    Ack,
    DeliveryState,
    Nack,
    OffsetGap,
    Reject,
    Release,
    Settlement,
    UndeliverableMessage,
)
from headrace.model.errors import InvalidRecordState
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import Created, Deleted, Failed, Settled, Sought


@pytest.fixture
def driver() -> SubscriptionDriver:
    """A subscription with a hundred new messages."""
    driver = SubscriptionDriver(0)
    driver.end = 100
    return driver


def test_members_share_the_messages(driver: SubscriptionDriver) -> None:
    assert driver.lease(10, "a") == [(0, 9, 1)]
    assert driver.lease(10, "b") == [(10, 19, 1)]


def test_a_lease_ends_where_the_readable_messages_end(driver: SubscriptionDriver) -> None:
    assert driver.lease(1_000) == [(0, 99, 1)]
    assert driver.choose() == []
    driver.end = 101
    assert driver.lease() == [(100, 100, 1)]


def test_acked_messages_are_never_delivered_again(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.ack(2, 4)
    driver.wait(LEASE_MS)
    assert driver.lease(10) == [(0, 1, 2), (5, 9, 2), (10, 12, 1)]


def test_the_floor_is_the_first_message_that_is_not_settled(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.ack(1, 4)
    assert driver.machine.floor == 0
    driver.ack(0)
    assert driver.machine.floor == 5


def test_only_messages_that_were_read_are_granted(driver: SubscriptionDriver) -> None:
    driver.lease(30)
    driver.ack(5, 9)
    driver.settle(0, 4, Release())
    driver.settle(10, 29, Release())
    ranges = driver.choose(20)
    assert ranges == [(0, 4), (10, 24)]
    assert driver.machine.grant(ranges[1:], "b", driver.now_ms) == [(10, 24, 1)]
    assert driver.choose(8) == [(0, 4), (25, 27)]


def test_skipped_new_messages_are_delivered_later(driver: SubscriptionDriver) -> None:
    ranges = driver.choose(50)
    middle = [ranges[0]._replace(first=20, last=29)]
    assert driver.machine.grant(middle, "a", driver.now_ms) == [(20, 29, 1)]
    assert driver.choose() == [(0, 19), (30, 99)]


# --- rejected requests ---


@pytest.mark.parametrize("how", [Ack(), Nack(), Reject(), OffsetGap()])
def test_a_settle_is_rejected_a_millisecond_after_the_lease_end(driver: SubscriptionDriver, how: Settlement) -> None:
    driver.lease(10)
    driver.now_ms += LEASE_MS - 1
    driver.settle(0, 4, how)
    driver.now_ms += 1
    with pytest.raises(InvalidRecordState, match="ended 0 ms ago"):
        driver.settle(5, 9, how)


def test_a_late_settle_is_rejected_even_if_the_message_is_not_leased_again(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.wait(LEASE_MS)
    with pytest.raises(InvalidRecordState, match="not leased"):
        driver.ack(0)


def test_a_settle_of_an_earlier_attempt_is_rejected(driver: SubscriptionDriver) -> None:
    driver.lease(1)
    driver.nack(0)
    driver.lease(1)
    with pytest.raises(InvalidRecordState, match="attempt 2, not any more in attempt 1"):
        driver.settle(0, 0, Ack(), "a", 1)
    driver.settle(0, 0, Ack(), "a", 2)


def test_a_member_cannot_settle_another_members_lease(driver: SubscriptionDriver) -> None:
    driver.lease(10, "a")
    with pytest.raises(InvalidRecordState, match="another member than 'b'"):
        driver.ack(0, 9, "b")


@pytest.mark.parametrize(("first", "last"), [(0, 10), (5, 12), (9, 10), (10, 10), (0, 99)])
def test_a_range_with_one_invalid_message_is_rejected_completely(
    driver: SubscriptionDriver, first: int, last: int
) -> None:
    driver.lease(10)
    with pytest.raises(InvalidRecordState, match="message 10 is not leased"):
        driver.ack(first, last)
    assert driver.machine.counts(driver.end).leased == 10
    assert driver.machine.floor == 0


def test_a_settled_message_cannot_be_settled_again(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.ack(3)
    with pytest.raises(InvalidRecordState):
        driver.ack(3)
    with pytest.raises(InvalidRecordState):
        driver.nack(0, 9)


def test_a_reversed_range_is_rejected(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    with pytest.raises(InvalidRecordState, match="no range"):
        driver.ack(5, 4)


def test_a_settle_may_span_leases(driver: SubscriptionDriver) -> None:
    driver.lease(5)
    driver.lease(5)
    driver.ack(2, 7)
    assert driver.machine.counts(driver.end).leased == 4


# --- time ---


def test_a_lease_can_be_extended_and_cut_short(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.machine.extend(0, 4, "a", 1, driver.now_ms, 60_000)
    driver.machine.extend(5, 5, "a", None, driver.now_ms, 10)
    assert driver.machine.next_due_ms() == driver.now_ms + 10
    driver.wait(10)
    assert driver.machine.state_of(5) == DeliveryState("ready", 1, reason="the lease expired")
    driver.wait(LEASE_MS)
    driver.ack(0, 4)
    with pytest.raises(InvalidRecordState):
        driver.machine.extend(6, 6, "a", None, driver.now_ms, 10)


def test_the_next_due_time_is_known(driver: SubscriptionDriver) -> None:
    assert driver.machine.next_due_ms() is None
    driver.lease(10)
    assert driver.machine.next_due_ms() == driver.now_ms + LEASE_MS
    driver.nack(0, 0, delay_ms=500)
    assert driver.machine.next_due_ms() == driver.now_ms + 500
    driver.wait(500)
    assert driver.machine.next_due_ms() == driver.now_ms + LEASE_MS - 500
    driver.ack(1, 9)
    assert driver.machine.next_due_ms() is None


def test_expire_changes_no_state(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    late_ms = driver.now_ms + LEASE_MS
    assert driver.machine.expire(late_ms) == driver.machine.expire(late_ms) != []


def test_a_member_can_release_its_leases(driver: SubscriptionDriver) -> None:
    driver.lease(10, "a")
    driver.lease(10, "b")
    assert driver.settle(0, 9, Release()) == []
    assert driver.lease(30, "c") == [(0, 9, 1), (20, 39, 1)]


def test_leases_of_a_removed_member_count_as_failed_deliveries(driver: SubscriptionDriver) -> None:
    driver.lease(10, "a")
    events = driver.machine.release_member("a", driver.now_ms)
    assert events == [Failed(driver.now_ms, 0, 9, 1, driver.now_ms, "the member is gone")]
    driver.store(events)
    assert driver.lease(10, "b") == [(0, 9, 2)]


def test_a_released_message_is_ready_as_if_never_leased(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.nack(0, 1)
    driver.lease(2)
    assert driver.settle(1, 4, Release()) == []
    assert driver.machine.state_of(0).state == "leased"
    assert driver.lease(4, "b") == [(1, 1, 2), (2, 4, 1)]


def test_a_message_can_be_settled_without_naming_its_member(driver: SubscriptionDriver) -> None:
    driver.lease(10, "a")
    driver.store(driver.machine.settle(3, 3, Ack(), None, None, driver.now_ms))
    driver.machine.extend(4, 4, None, None, driver.now_ms, 60_000)
    assert driver.machine.state_of(3).state == "settled"
    with pytest.raises(InvalidRecordState):
        driver.machine.settle(3, 3, Ack(), None, None, driver.now_ms)
    driver.wait(LEASE_MS)
    with pytest.raises(InvalidRecordState):
        driver.machine.settle(5, 5, Ack(), None, None, driver.now_ms)
    assert driver.machine.state_of(4).state == "leased"


def test_adjacent_expired_leases_make_one_event(driver: SubscriptionDriver) -> None:
    driver.lease(1)
    driver.nack(0)
    for _ in range(50):
        driver.lease(1)
    driver.ack(20)
    assert driver.wait(LEASE_MS) == [
        Failed(driver.now_ms, 0, 0, 2, driver.now_ms, "the lease expired"),
        Failed(driver.now_ms, 1, 19, 1, driver.now_ms, "the lease expired"),
        Failed(driver.now_ms, 21, 49, 1, driver.now_ms, "the lease expired"),
    ]


# --- retries ---


def test_a_due_retry_precedes_new_messages(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.nack(7, delay_ms=100)
    driver.ack(0, 6)
    driver.ack(8, 9)
    assert driver.choose(2) == [(10, 11)]
    driver.now_ms += 100
    assert driver.choose(2) == [(7, 7), (10, 10)]


def test_a_due_retry_precedes_new_messages_after_a_restart(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.nack(7, delay_ms=100)
    driver.restart()
    assert driver.choose(9) == [(0, 6), (8, 9)]
    driver.now_ms += 100
    assert driver.choose(3) == [(0, 1), (7, 7)]
    assert driver.lease(3) == [(0, 1, 1), (7, 7, 2)]
    assert driver.lease(4) == [(2, 5, 1)]


def test_a_replay_does_not_deliver_waiting_messages(driver: SubscriptionDriver) -> None:
    driver.lease(2)
    driver.nack(0, 1)
    driver.lease(2)
    driver.nack(0, 0, delay_ms=100)
    driver.restart()
    assert driver.choose(2) == [(1, 2)]


def test_back_off_grows_up_to_a_limit() -> None:
    driver = SubscriptionDriver(
        share_delivery_count_limit="100",
        headrace_retry_backoff_ms="100",
        headrace_retry_backoff_max_ms="1000",
        headrace_retry_backoff_multiplier="3",
    )
    driver.end = 1
    waits = []
    for _ in range(6):
        driver.lease()
        driver.nack(0)
        due_ms = driver.machine.next_due_ms()
        assert due_ms is not None
        waits.append(due_ms - driver.now_ms)
        driver.wait(waits[-1])
    assert waits == [100, 300, 900, 1000, 1000, 1000]


def test_back_off_stays_at_its_limit_after_any_number_of_failures() -> None:
    driver = SubscriptionDriver(
        share_delivery_count_limit="1000",
        headrace_retry_backoff_ms="1",
        headrace_retry_backoff_multiplier="100",
    )
    driver.end = 1
    driver.store([Failed(0, 0, 0, 998, 0)])
    driver.lease()
    driver.nack(0)
    assert driver.machine.state_of(0).until_ms == driver.now_ms + 15 * 60_000


@pytest.mark.parametrize(("chance", "wait_ms"), [(0.0, 1000), (0.5, 875), (1.0, 750)])
def test_back_off_has_jitter(chance: float, wait_ms: int) -> None:
    driver = SubscriptionDriver(chance=chance, headrace_retry_backoff_ms="1000", headrace_retry_jitter="0.25")
    driver.end = 1
    driver.lease()
    driver.nack(0)
    assert driver.machine.state_of(0).until_ms == driver.now_ms + wait_ms


def test_a_requested_delay_is_exact() -> None:
    driver = SubscriptionDriver(chance=1.0, headrace_retry_backoff_ms="1000")
    driver.end = 2
    driver.lease()
    driver.nack(0, delay_ms=0)
    driver.nack(1, delay_ms=123)
    assert driver.choose() == [(0, 0)]
    driver.now_ms += 123
    assert driver.choose() == [(0, 1)]


# --- dead letters ---


def test_a_message_at_the_delivery_limit_is_dying(driver: SubscriptionDriver) -> None:
    for attempt in range(1, 6):
        assert driver.lease(1) == [(0, 0, attempt)]
        driver.nack(0, reason=f"failure {attempt}")
    assert list(driver.machine.dying()) == [UndeliverableMessage(0, 5, "failure 5")]
    assert driver.choose(1) == [(1, 1)]
    assert driver.dead_letter() == [0]
    assert driver.machine.floor == 1


def test_a_rejected_message_is_dying_at_once_and_after_a_restart(driver: SubscriptionDriver) -> None:
    driver.lease(3)
    driver.reject(1, "unreadable")
    driver.restart()
    assert list(driver.machine.dying()) == [UndeliverableMessage(1, 1, "unreadable")]
    assert driver.choose() == [(0, 0), (2, 99)]


def test_dying_messages_can_be_settled_during_iteration(driver: SubscriptionDriver) -> None:
    driver.lease(3)
    driver.settle(0, 2, Reject())
    dying = driver.machine.dying()
    assert next(dying).offset == 0
    driver.store([Settled(0, "dead", [(0, 1)])])
    assert [one.offset for one in dying] == [2]


def test_a_seek_ends_the_dying_state(driver: SubscriptionDriver) -> None:
    driver.lease(3)
    driver.settle(0, 2, Reject())
    dying = driver.machine.dying()
    next(dying)
    driver.store([Sought(driver.now_ms, 0)])
    assert list(dying) == []


def test_a_new_delivery_limit_applies_at_once(driver: SubscriptionDriver) -> None:
    driver.lease(3)
    driver.nack(0, 2)
    driver.machine.reconfigure(SubscriptionConfig(share_delivery_count_limit=1))
    assert [one.offset for one in driver.machine.dying()] == [0, 1, 2]
    driver.machine.reconfigure(SubscriptionConfig(share_delivery_count_limit=2))
    assert list(driver.machine.dying()) == []
    assert driver.lease(4) == [(0, 2, 2), (3, 3, 1)]


def test_a_leased_retry_survives_a_configuration_change(driver: SubscriptionDriver) -> None:
    driver.lease(3)
    driver.nack(0, 2)
    driver.lease(2)
    driver.machine.reconfigure(SubscriptionConfig(share_delivery_count_limit=1))
    assert [one.offset for one in driver.machine.dying()] == [2]
    driver.machine.reconfigure(SubscriptionConfig(share_delivery_count_limit=9))
    assert driver.choose(2) == [(2, 3)]
    driver.ack(0, 1)


def test_without_dead_letters_undeliverable_messages_are_settled() -> None:
    driver = SubscriptionDriver(headrace_dead_letters_enable="false", share_delivery_count_limit="1")
    driver.end = 2
    driver.lease()
    assert driver.settle(0, 0, Reject("bad")) == [Settled(driver.now_ms, "reject", [(0, 0)])]
    assert driver.settle(1, 1, Nack()) == [Settled(driver.now_ms, "discarded", [(1, 1)])]
    assert list(driver.machine.dying()) == []
    assert driver.machine.floor == 2


# --- limits ---


def test_the_number_of_leased_messages_is_limited() -> None:
    driver = SubscriptionDriver(share_partition_max_record_locks="10")
    driver.end = 100
    driver.lease(7)
    assert driver.choose(7) == [(7, 9)]
    driver.lease(7)
    assert driver.choose() == []
    driver.ack(0, 4)
    driver.nack(5, 5, delay_ms=1_000)
    assert driver.choose() == [(10, 15)]


def test_the_rate_holds_on_average() -> None:
    driver = SubscriptionDriver(headrace_rate="100")
    driver.end = 10_000
    begin_ms = driver.now_ms
    count = 0
    while driver.now_ms < begin_ms + 10_000:
        granted = driver.lease(1_000)
        count += sum(last - first + 1 for first, last, _ in granted)
        if granted:
            driver.ack(granted[0].first, granted[-1].last)
        else:
            due_ms = driver.machine.next_due_ms()
            assert due_ms is not None
            driver.wait(due_ms - driver.now_ms)
    assert 1_000 <= count <= 1_020


def test_a_rate_below_ten_per_second_holds() -> None:
    driver = SubscriptionDriver(headrace_rate="2")
    driver.end = 10
    assert driver.lease() == [(0, 0, 1)]
    driver.now_ms += 499
    assert driver.choose() == []
    driver.now_ms += 1
    assert driver.lease() == [(1, 1, 1)]


# --- the log ---


def test_messages_that_retention_deleted_are_settled(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.nack(8, delay_ms=1)
    assert driver.machine.trimmed(0, driver.now_ms) is None
    event = driver.machine.trimmed(9, driver.now_ms)
    assert event == Settled(driver.now_ms, "expired", [(0, 8)], by_retention=True)
    driver.store([event])
    assert driver.machine.floor == 9
    assert driver.machine.counts(driver.end) == (91, 1, 0, 0, 0)
    assert driver.machine.trimmed(9, driver.now_ms) is None


def test_a_subscription_can_seek_back_and_forth(driver: SubscriptionDriver) -> None:
    driver.lease(50)
    driver.ack(0, 19)
    driver.nack(30, 39, delay_ms=9_999)
    driver.store([Sought(driver.now_ms, 10)])
    assert driver.machine.floor == 10
    with pytest.raises(InvalidRecordState):
        driver.ack(20)
    assert driver.lease() == [(10, 99, 1)]
    driver.store([Sought(driver.now_ms, 90)])
    assert driver.lease() == [(90, 99, 1)]


def test_a_deleted_subscription_has_no_state(driver: SubscriptionDriver) -> None:
    driver.lease(10)
    driver.nack(0)
    driver.store([Deleted(driver.now_ms)])
    assert contents(driver.machine) == (0, [], [], [])
    driver.store([Created(driver.now_ms, 50)])
    assert driver.lease() == [(50, 99, 1)]


def test_the_broker_settles_offsets_without_messages(driver: SubscriptionDriver) -> None:
    driver.store([Settled(driver.now_ms, "gap", [(3, 3), (5, 98)])])
    assert driver.lease() == [(0, 2, 1), (4, 4, 1), (99, 99, 1)]


def test_the_state_of_a_message_is_returned(driver: SubscriptionDriver) -> None:
    driver.lease(6)
    driver.ack(0)
    driver.nack(1, delay_ms=700, reason="busy")
    driver.nack(2, reason="broken")
    driver.reject(3, "never")
    assert [driver.machine.state_of(offset) for offset in (0, 1, 2, 3, 4, 50)] == [
        DeliveryState("settled"),
        DeliveryState("waiting", 1, until_ms=driver.now_ms + 700, reason="busy"),
        DeliveryState("ready", 1, reason="broken"),
        DeliveryState("dying", 1, reason="never"),
        DeliveryState("leased", 1, "a", driver.now_ms + LEASE_MS),
        DeliveryState("ready"),
    ]
    assert driver.machine.counts(driver.end) == (99, 2, 1, 1, 0)
