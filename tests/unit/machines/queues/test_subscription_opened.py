"""Deliveries that depend on the contents of messages: priorities, key order, filters, expiry."""

from __future__ import annotations

import pytest
from tests.unit.machines.queues.subscription_driver import LEASE_MS, SubscriptionDriver, message

from headrace.machines.queues import ready_messages
from headrace.machines.queues.subscription_values import ClassifiedMessage, GrantedRange, Nack, Range, Release
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import Settled

SLACKS_MS = (9_000, 8_000, 7_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000, 0)
SLACKS = ",".join(map(str, SLACKS_MS))


def offsets_of(granted: list[GrantedRange]) -> list[int]:
    return [offset for first, last, _ in granted for offset in range(first, last + 1)]


def one_by_one(driver: SubscriptionDriver) -> list[int]:
    """Return the order of delivery to a member that leases one message at a time."""
    order = []
    while granted := driver.lease(1):
        driver.ack(granted[0].first)
        order.append(granted[0].first)
    return order


# --- what is offered ---


@pytest.fixture
def driver() -> SubscriptionDriver:
    return SubscriptionDriver(headrace_filter="key = 'x'", headrace_expiry_enable="true")


def test_only_offered_messages_are_delivered(driver: SubscriptionDriver) -> None:
    driver.end = 10
    assert driver.choose() == []
    driver.offer(message(0), message(1))
    assert driver.machine.classified_to == 2
    assert driver.lease() == [(0, 1, 1)]


def test_messages_that_do_not_match_the_filter_are_settled_undelivered(driver: SubscriptionDriver) -> None:
    messages = [message(offset, matches=offset in {2, 5}) for offset in range(8)]
    events = driver.machine.offer(messages, 8, driver.now_ms)
    assert events == [Settled(driver.now_ms, "filtered", [(0, 1), (3, 4), (6, 7)])]
    driver.store(events)
    assert driver.machine.floor == 2
    assert driver.machine.choose(driver.now_ms, 10, 8) == [(2, 2), (5, 5)]


def test_offsets_without_a_message_are_gaps(driver: SubscriptionDriver) -> None:
    events = driver.machine.offer([message(2), message(5)], 8, driver.now_ms)
    assert events == [Settled(driver.now_ms, "gap", [(0, 1), (3, 4), (6, 7)])]


def test_a_partly_offered_batch_is_not_offered_twice(driver: SubscriptionDriver) -> None:
    driver.offer(message(0), message(1))
    driver.offer(message(0), message(1), message(2))
    assert driver.lease() == [(0, 2, 1)]


def test_after_a_restart_all_messages_are_offered_again(driver: SubscriptionDriver) -> None:
    messages = [message(offset) for offset in range(6)]
    driver.offer(*messages)
    driver.lease()
    driver.ack(0)
    driver.ack(3)
    driver.nack(2, delay_ms=500)
    driver.reject(4)
    driver.restart()
    assert driver.machine.classified_to == 1
    driver.offer(*messages)
    assert driver.lease() == [(1, 1, 1), (5, 5, 1)]
    driver.now_ms += 500
    assert driver.lease() == [(2, 2, 2)]


def test_a_lease_survives_a_change_to_decoded_messages(driver: SubscriptionDriver) -> None:
    messages = [message(offset, key=b"k") for offset in range(6)]
    driver.offer(*messages)
    driver.lease(3)
    driver.machine.reconfigure(SubscriptionConfig())
    assert driver.choose() == [(3, 5)]
    driver.ack(1)
    driver.machine.reconfigure(SubscriptionConfig(headrace_key_concurrency=1))
    driver.offer(*messages)
    assert driver.choose() == [], "0 and 2 are still in flight"
    driver.ack(0)
    driver.ack(2)
    assert driver.choose() == [(3, 3)]


# --- expiry ---


def test_an_expired_message_is_not_delivered(driver: SubscriptionDriver) -> None:
    driver.offer(message(0, expires_ms=driver.now_ms), message(1, expires_ms=driver.now_ms + 10), message(2))
    assert driver.machine.floor == 1
    assert driver.choose() == [(1, 2)]
    driver.now_ms += 10
    assert driver.choose() == [(2, 2)]


def test_a_message_is_settled_when_it_expires(driver: SubscriptionDriver) -> None:
    driver.offer(message(0, expires_ms=driver.now_ms + 10), message(1))
    assert driver.machine.next_due_ms() == driver.now_ms + 10
    assert driver.wait(10) == [Settled(driver.now_ms, "expired", [(0, 0)])]
    assert driver.machine.next_due_ms() is None
    assert driver.machine.floor == 1


def test_a_leased_message_does_not_expire(driver: SubscriptionDriver) -> None:
    driver.offer(message(0, expires_ms=driver.now_ms + 10), message(1, expires_ms=driver.now_ms + 10))
    driver.lease()
    assert driver.wait(10) == []
    driver.ack(0)
    driver.nack(1)
    assert driver.choose() == []
    assert driver.wait(0) == [Settled(driver.now_ms, "expired", [(1, 1)])]


def test_a_message_may_expire_while_it_waits_for_a_retry(driver: SubscriptionDriver) -> None:
    driver.offer(message(0, expires_ms=driver.now_ms + 10))
    driver.lease()
    driver.nack(0, delay_ms=5_000)
    driver.wait(10)
    assert driver.machine.floor == 1
    assert driver.machine.next_due_ms() is None


# --- order per key ---


def keyed(count: int, keys: int, slots: int) -> SubscriptionDriver:
    driver = SubscriptionDriver(headrace_key_concurrency=str(slots))
    driver.offer(*(message(offset, key=b"%d" % (offset % keys)) for offset in range(count)))
    return driver


def test_one_message_of_a_key_is_in_flight_at_a_time() -> None:
    driver = keyed(9, 3, slots=1)
    assert driver.lease() == [(0, 2, 1)]
    assert driver.choose() == []
    driver.ack(1)
    assert driver.lease() == [(4, 4, 1)]


def test_a_retry_holds_back_the_later_messages_of_its_key() -> None:
    driver = keyed(9, 3, slots=1)
    driver.lease()
    driver.nack(0, delay_ms=1_000)
    driver.ack(1, 2)
    assert driver.lease() == [(4, 5, 1)]
    driver.now_ms += 1_000
    assert driver.lease() == [(0, 0, 2)]


def test_a_dying_message_frees_its_key() -> None:
    driver = keyed(9, 3, slots=1)
    driver.lease()
    driver.reject(0)
    assert driver.lease() == [(3, 3, 1)]


def test_several_messages_of_a_key_may_be_allowed() -> None:
    driver = keyed(10, 2, slots=2)
    assert driver.lease() == [(0, 3, 1)]
    driver.ack(1)
    driver.ack(3)
    assert driver.lease() == [(5, 5, 1), (7, 7, 1)]


def test_messages_without_a_key_are_not_ordered() -> None:
    driver = SubscriptionDriver(headrace_key_concurrency="1")
    driver.offer(*(message(offset) for offset in range(5)))
    assert driver.lease() == [(0, 4, 1)]


def test_keys_without_messages_are_removed() -> None:
    driver = keyed(1_000, 500, slots=1)
    for _ in range(2):
        for first, last, _ in driver.lease():
            driver.ack(first, last)
    assert driver.machine.floor == 1_000
    assert driver.machine._window is not None
    assert not driver.machine._window._keys
    assert not driver.machine._window._messages


# --- priorities ---


def prioritised(*messages: ClassifiedMessage) -> SubscriptionDriver:
    driver = SubscriptionDriver(headrace_priority_slack_ms=SLACKS)
    driver.offer(*messages)
    return driver


def test_of_simultaneous_messages_the_higher_priority_goes_first() -> None:
    driver = prioritised(message(0, priority=0), message(1, priority=9), message(2, priority=4))
    assert one_by_one(driver) == [1, 2, 0]


def test_slack_bounds_how_much_later_messages_may_overtake() -> None:
    driver = prioritised(
        message(0, priority=3, arrived_ms=0),
        message(1, priority=5, arrived_ms=1_999),
        message(2, priority=5, arrived_ms=2_000),
        message(3, priority=5, arrived_ms=2_001),
    )
    assert one_by_one(driver) == [1, 2, 0, 3]


def test_a_priority_class_is_served_in_log_order() -> None:
    driver = prioritised(*(message(offset, priority=5, arrived_ms=100 - offset) for offset in range(20)))
    assert one_by_one(driver) == list(range(20))


def test_a_retry_keeps_its_priority_and_position() -> None:
    driver = prioritised(message(0, priority=1), message(1, priority=8), message(2, priority=8), message(3, priority=9))
    assert offsets_of(driver.lease(2)) == [1, 3]
    driver.nack(1)
    driver.ack(3)
    assert one_by_one(driver) == [1, 2, 0]


def test_a_clock_that_is_ahead_does_not_hold_back_its_class() -> None:
    driver = SubscriptionDriver(headrace_priority_slack_ms=SLACKS)
    now_ms = driver.now_ms
    driver.offer(message(0, priority=9, arrived_ms=now_ms + 10**9), message(1, priority=9, arrived_ms=now_ms))
    driver.now_ms += 10_000
    driver.offer(message(2, priority=0, arrived_ms=driver.now_ms))
    assert one_by_one(driver) == [0, 1, 2]


def test_a_clock_that_is_behind_does_not_overtake_for_longer_than_the_slack() -> None:
    """Messages of the highest priority with timestamps of last hour keep coming; each lease takes one."""
    driver = SubscriptionDriver(headrace_priority_slack_ms=",".join(str(9000 - 1000 * one) for one in range(10)))
    driver.offer(message(0, priority=0, arrived_ms=driver.now_ms), message(1, priority=9, arrived_ms=driver.now_ms))
    for second in range(60):
        (leased,) = driver.lease(1)
        driver.ack(leased.first)
        if leased.first == 0:
            break
        driver.now_ms += 1000
        driver.offer(message(2 + second, priority=9, arrived_ms=driver.now_ms - 3_600_000))
    assert second <= 11, "the slack of 9 s, and the time between two leases"


def test_a_clock_that_is_behind_does_not_overtake_in_a_long_backlog() -> None:
    """The backlog is larger than the window, and messages arrive as fast as they are delivered."""
    driver = SubscriptionDriver(headrace_priority_slack_ms=SLACKS)
    began_ms, per_second = driver.now_ms, 100
    driver.end = backlog = 2 * ready_messages.READY_ENOUGH
    for _ in range(200):
        while driver.machine.wants_classified and driver.machine.classified_to < driver.end:
            first = driver.machine.classified_to
            opened = [
                message(offset, priority=9, arrived_ms=driver.now_ms - 3_600_000)
                if offset
                else message(offset, priority=0, arrived_ms=began_ms)
                for offset in range(first, min(first + per_second, driver.end))
            ]
            driver.store(driver.machine.offer(opened, opened[-1].offset + 1, driver.now_ms))
        offsets = offsets_of(driver.lease(per_second))
        for offset in offsets:
            driver.ack(offset)
        if 0 in offsets:
            break
        driver.now_ms += 1000
        driver.end += per_second
    seconds = (driver.now_ms - began_ms) // 1000
    assert seconds <= backlog // per_second + 10, "earlier messages, and those that arrived within the slack of 9 s"


def test_an_unknown_priority_counts_as_the_highest() -> None:
    driver = prioritised(message(0, priority=9), message(1, priority=200), message(2, priority=3))
    assert one_by_one(driver) == [0, 1, 2]


def test_key_order_precedes_priority() -> None:
    driver = SubscriptionDriver(headrace_priority_slack_ms=SLACKS, headrace_key_concurrency="1")
    driver.offer(message(0, priority=0, key=b"k"), message(1, priority=9, key=b"k"), message(2, priority=5, key=b"l"))
    assert one_by_one(driver) == [2, 0, 1]


def test_no_message_starves() -> None:
    """Every millisecond one message is served and one of priority 9 arrives; every 50 ms also one of priority 0, so
    that more and more is left undone. A message of priority 0 is delivered at the latest after what was there when it
    came and what comes within slack[0] - slack[9] after it: that is its bound, counted in deliveries.
    """
    driver = SubscriptionDriver(headrace_priority_slack_ms="2000,1750,1500,1250,1000,750,500,250,100,0")
    begin_ms = driver.now_ms
    arrivals_per_ms: list[int] = []
    bounds: dict[int, tuple[int, int]] = {}  # arrival, and the latest delivery number
    delivered: dict[int, int] = {}
    for ms in range(12_000):
        driver.now_ms = begin_ms + ms
        messages = [message(driver.end, priority=9, arrived_ms=driver.now_ms)]
        if ms % 50 == 0:
            messages.append(message(driver.end + 1, priority=0, arrived_ms=driver.now_ms))
            bounds[driver.end + 1] = (ms, driver.end + 2)
        arrivals_per_ms.append(len(messages))
        driver.offer(*messages)
        offset = offsets_of(driver.lease(1))[0]
        driver.ack(offset)
        delivered[offset] = len(delivered) + 1
    is_due = 0
    for offset, (arrived, there) in bounds.items():
        bound = there + sum(arrivals_per_ms[arrived + 1 : arrived + 2_000 + 1])
        if bound <= len(delivered):
            assert delivered[offset] <= bound
            is_due += 1
    assert is_due > 190
    waited = [delivered[offset] - there for offset, (_, there) in bounds.items() if offset in delivered]
    assert max(waited) > 1_000, "priority 9 does go first"


# --- the window ---


def test_only_necessary_messages_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_messages, "READY_ENOUGH", 5)
    driver = SubscriptionDriver(headrace_filter="key = 'x'")
    driver.offer(*(message(offset) for offset in range(4)))
    assert driver.machine.wants_classified
    driver.offer(message(4))
    assert not driver.machine.wants_classified
    driver.lease(1)
    assert driver.machine.wants_classified


def test_with_priorities_the_window_extends_as_far_as_a_message_could_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_messages, "READY_ENOUGH", 5)
    driver = SubscriptionDriver(headrace_priority_slack_ms=SLACKS)
    driver.offer(*(message(offset, priority=0, arrived_ms=1_000 * offset) for offset in range(9)))
    assert driver.machine.wants_classified, "a message of priority 9 that arrives at 8,500 would precede the first"
    driver.offer(message(9, priority=0, arrived_ms=9_000))
    assert not driver.machine.wants_classified
    driver.end = 99
    assert driver.choose() == [(0, 0)], "more must be decoded before the second is delivered"


def test_the_window_is_bounded_but_leases_do_not_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_messages, "WINDOW_MAX", 10)
    driver = keyed(10, 1, slots=1)
    assert not driver.machine.wants_classified
    driver.lease()
    assert driver.machine.wants_classified
    driver.nack(0, delay_ms=1_000)
    assert driver.machine.wants_classified


def test_a_trim_far_beyond_the_window_is_one_step() -> None:
    driver = keyed(10, 3, slots=1)
    driver.lease(2)
    event = driver.machine.trimmed(10**12, driver.now_ms)
    assert event is not None
    driver.store([event])
    assert driver.machine.floor == driver.machine.classified_to == 10**12
    assert driver.machine.counts(10**12) == (0, 0, 0, 0, 0)


def test_messages_of_an_ended_lease_keep_their_position() -> None:
    driver = keyed(9, 3, slots=1)
    driver.lease()
    driver.wait(LEASE_MS)
    assert driver.lease() == [(0, 2, 2)]
    driver.settle(0, 2, Nack(0))
    assert driver.lease() == [(0, 2, 3)]
    driver.settle(0, 2, Release())
    assert driver.lease() == [(0, 2, 3)]


def test_a_redriven_message_is_offered_again_without_the_settled_ones_after_it() -> None:
    driver = SubscriptionDriver(headrace_key_concurrency="1")
    driver.offer(*(message(offset) for offset in range(10)))
    driver.lease()
    driver.ack(0, 8)
    driver.store(driver.machine.redrive([(2, 1)], driver.now_ms))
    assert (driver.machine.floor, driver.machine.classified_to) == (2, 2)
    driver.store(driver.machine.offer([message(2)], 3, driver.now_ms))
    assert driver.machine.classified_to == 9, "3 to 8 are settled"
    driver.store(driver.machine.offer([message(9)], 10, driver.now_ms))
    assert [one.first for one in driver.lease()] == [2], "message 9 is still leased"
    driver.ack(2)
    driver.ack(9)
    assert driver.machine.floor == 10


def test_a_redriven_message_waits_for_the_slot_of_its_key() -> None:
    driver = SubscriptionDriver(headrace_key_concurrency="1")
    driver.offer(message(0, key=b"k"), message(1, key=b"k"))
    driver.lease()
    driver.ack(0)
    driver.lease()
    driver.store(driver.machine.redrive([(0, 1)], driver.now_ms))
    driver.offer(message(0, key=b"k"), message(1, key=b"k"))
    assert driver.choose() == []
    driver.ack(1)
    assert driver.choose() == [Range(0, 0)]
