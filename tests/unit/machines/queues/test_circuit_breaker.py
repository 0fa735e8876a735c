"""A circuit opens after failures in a row, lets one try at a time, and is open for longer the longer nothing works."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.machines.queues.circuit_breaker import CircuitBreaker


def opened(now_ms: int = 0) -> CircuitBreaker:
    circuit = CircuitBreaker(3, 100, 400)
    for _ in range(3):
        circuit.failed(now_ms)
    return circuit


def test_failures_in_a_row_open_it() -> None:
    circuit = CircuitBreaker(3, 100, 400)
    states = []
    for now_ms in (0, 0, 5):
        assert circuit.may_try(now_ms)
        circuit.failed(now_ms)
        states.append(circuit.state)
    assert states == ["closed", "closed", "open"]
    assert circuit.retry_at_ms == 105
    assert not circuit.may_try(104)


def test_a_success_between_failures_keeps_it_closed() -> None:
    circuit = CircuitBreaker(2, 100, 400)
    for now_ms in range(10):
        circuit.failed(now_ms)
        circuit.succeeded()
    assert circuit.state == "closed"
    assert circuit.retry_at_ms == 0


def test_one_goes_to_try_when_it_is_half_open() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    assert circuit.state == "half-open"
    assert not circuit.may_try(100)
    assert not circuit.may_try(199)


def test_a_trial_that_works_closes_it_for_all() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    circuit.succeeded()
    assert circuit.state == "closed"
    assert circuit.may_try(110)
    assert circuit.may_try(110)


def test_each_failed_trial_doubles_the_time_up_to_the_cap() -> None:
    circuit = opened()
    waits = []
    for _ in range(4):
        now_ms = circuit.retry_at_ms
        assert circuit.may_try(now_ms)
        circuit.failed(now_ms)
        waits.append(circuit.retry_at_ms - now_ms)
    assert waits == [200, 400, 400, 400]


def test_after_a_success_the_time_begins_anew() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    circuit.failed(100)
    circuit.succeeded()
    for _ in range(3):
        circuit.failed(200)
    assert circuit.retry_at_ms == 300


def test_a_trial_that_is_never_heard_of_again_does_not_stay_the_last() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    assert not circuit.may_try(199)
    assert circuit.may_try(200)


def test_failures_that_are_told_late_do_not_keep_it_open_for_longer() -> None:
    circuit = opened()
    circuit.failed(50)
    circuit.failed(99)
    assert circuit.retry_at_ms == 100


class Callers(RuleBasedStateMachine):
    """Many callers with their own ideas of when to tell, against the promises of the module's first lines."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit = CircuitBreaker(3, 100, 1000)
        self.now_ms = 0
        self.failures_in_a_row = 0

    @rule(milliseconds=st.integers(0, 400))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def somebody_asks(self) -> None:
        was_closed = self.circuit.state == "closed"
        due_ms = self.circuit.retry_at_ms
        allowed = self.circuit.may_try(self.now_ms)
        assert allowed == (was_closed or self.now_ms >= due_ms)
        if allowed and not was_closed:
            assert self.circuit.state == "half-open"
            assert not self.circuit.may_try(self.now_ms)

    @rule()
    def it_works(self) -> None:
        self.failures_in_a_row = 0
        self.circuit.succeeded()
        assert self.circuit.state == "closed"

    @rule()
    def it_fails(self) -> None:
        self.failures_in_a_row += 1
        was = self.circuit.state
        due_ms = self.circuit.retry_at_ms
        self.circuit.failed(self.now_ms)
        if was == "open":
            assert self.circuit.retry_at_ms == due_ms
        elif was == "half-open":
            assert self.circuit.state == "open"

    @precondition(lambda self: self.circuit.state != "closed")
    @rule()
    def whoever_waits_long_enough_may_try(self) -> None:
        self.now_ms = max(self.now_ms, self.circuit.retry_at_ms)
        assert self.circuit.may_try(self.now_ms)

    @invariant()
    def it_is_closed_just_while_failures_are_few(self) -> None:
        assert (self.circuit.state == "closed") == (self.failures_in_a_row < 3)

    @invariant()
    def nobody_waits_for_longer_than_the_cap(self) -> None:
        assert self.circuit.retry_at_ms <= self.now_ms + 1000


TestCallers = Callers.TestCase
