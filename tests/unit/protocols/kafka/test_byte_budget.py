"""The byte budget: lent buffers, waiting readers, and the pool of free buffers."""

from __future__ import annotations

from headrace.protocols.kafka import byte_budget as budget_module
from headrace.protocols.kafka.byte_budget import ByteBudget

ONE, OTHER = object(), object()


def test_the_budget_has_room_up_to_the_last_byte() -> None:
    budget = ByteBudget(1000)
    budget.take_buffer(600)
    assert budget.has_room(400, ONE)
    assert budget.taken == 600


def test_one_frame_at_a_time_may_exceed_the_budget() -> None:
    budget = ByteBudget(1000)
    mine = budget.take_buffer(600)
    budget.take_buffer(400)
    assert budget.has_room(1, ONE)
    assert not budget.has_room(1, OTHER)
    assert budget.has_room(5000, ONE)
    budget.finish(ONE, mine)
    assert budget.has_room(601, OTHER)
    assert not budget.has_room(601, ONE)


def test_a_frame_that_fits_does_not_use_the_overdraft() -> None:
    budget = ByteBudget(1000)
    budget.take_buffer(600)
    assert budget.has_room(400, ONE)
    budget.take_buffer(400)
    assert budget.has_room(1, OTHER)


def test_every_waiter_is_called_once_when_a_buffer_is_returned() -> None:
    budget = ByteBudget(1000)
    buffer = budget.take_buffer(1000)
    calls: list[str] = []
    budget.on_release(lambda: calls.append("first"))
    budget.on_release(lambda: calls.append("second"))
    budget.give_back(buffer)
    assert calls == ["first", "second"]
    budget.give_back(budget.take_buffer(10))
    assert calls == ["first", "second"]


def test_a_waiter_that_waits_again_is_called_in_the_next_round() -> None:
    budget = ByteBudget(1000)
    buffer = budget.take_buffer(1000)
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        budget.on_release(again)

    budget.on_release(again)
    budget.give_back(buffer)
    assert calls == [1]


def test_a_returned_buffer_is_reused() -> None:
    budget = ByteBudget(1 << 20)
    buffer = budget.take_buffer(1000)
    budget.give_back(buffer)
    assert budget.taken == 0
    assert budget.take_buffer(900) is buffer
    assert budget.taken == 1000


def test_a_free_buffer_is_not_used_for_a_much_smaller_frame() -> None:
    budget = ByteBudget(1 << 20)
    budget.give_back(budget.take_buffer(1000))
    assert len(budget.take_buffer(200)) == 200


def test_the_free_buffers_are_bounded() -> None:
    budget = ByteBudget(1 << 40)
    size = budget_module._KEPT_BYTES_MAX // 4
    for buffer in [budget.take_buffer(size) for _ in range(6)]:
        budget.give_back(buffer)
    assert budget.taken == 0
    assert sum(map(len, budget._free_buffers)) == budget._free_buffer_bytes == 4 * size
