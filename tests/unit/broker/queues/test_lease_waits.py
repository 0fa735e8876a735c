"""Who waits for a lease is woken in turn, one at a time, and none for nothing."""

from __future__ import annotations

from headrace.broker.queues.lease_poll import LeaseWaits


class Waiter:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def waiting(count: int) -> tuple[LeaseWaits, list[Waiter]]:
    waits, waiters = LeaseWaits(), [Waiter() for _ in range(count)]
    for waiter in waiters:
        waits.add(waiter)
    return waits, waiters


def test_one_is_woken_at_a_time_in_their_order() -> None:
    waits, waiters = waiting(3)
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [1, 0, 0]
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [1, 1, 0]


def test_who_found_nothing_keeps_its_place() -> None:
    waits, waiters = waiting(2)
    waits.wake_next()
    waits.add(waiters[0])
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [2, 0]


def test_who_leaves_after_it_was_woken_wakes_the_next() -> None:
    waits, waiters = waiting(2)
    waits.wake_next()
    waits.remove(waiters[0])
    assert [waiter.woken for waiter in waiters] == [1, 1]


def test_who_leaves_without_having_been_woken_wakes_nobody() -> None:
    waits, waiters = waiting(2)
    waits.remove(waiters[0])
    waits.remove(Waiter())
    assert [waiter.woken for waiter in waiters] == [0, 0]
    assert len(waits) == 1


def test_all_are_woken_when_nothing_more_can_come() -> None:
    waits, waiters = waiting(3)
    waits.wake_all()
    assert [waiter.woken for waiter in waiters] == [1, 1, 1]
