"""Waiters for a lease are woken in FIFO order, one at a time, and not unnecessarily."""

from __future__ import annotations

from headrace.broker.queues.leases import LeaseWaits


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


def test_waiters_are_woken_one_at_a_time_in_order() -> None:
    waits, waiters = waiting(3)
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [1, 0, 0]
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [1, 1, 0]


def test_a_waiter_that_finds_nothing_keeps_its_position() -> None:
    waits, waiters = waiting(2)
    waits.wake_next()
    waits.add(waiters[0])
    waits.wake_next()
    assert [waiter.woken for waiter in waiters] == [2, 0]


def test_a_woken_waiter_that_leaves_wakes_the_next() -> None:
    waits, waiters = waiting(2)
    waits.wake_next()
    waits.remove(waiters[0])
    assert [waiter.woken for waiter in waiters] == [1, 1]


def test_a_waiter_that_leaves_before_it_is_woken_wakes_no_other() -> None:
    waits, waiters = waiting(2)
    waits.remove(waiters[0])
    waits.remove(Waiter())
    assert [waiter.woken for waiter in waiters] == [0, 0]
    assert len(waits) == 1


def test_wake_all_wakes_every_waiter() -> None:
    waits, waiters = waiting(3)
    waits.wake_all()
    assert [waiter.woken for waiter in waiters] == [1, 1, 1]
