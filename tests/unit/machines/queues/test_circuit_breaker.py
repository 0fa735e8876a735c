"""A circuit opens after consecutive failures, allows single trials, and stays open longer after failed ones."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.machines.queues.circuit_breaker import CircuitBreaker


def opened(now_ms: int = 0) -> CircuitBreaker:
    circuit = CircuitBreaker(3, 100, 400)
    for _ in range(3):
        circuit.failed(now_ms)
    return circuit


def test_consecutive_failures_open_the_circuit() -> None:
    circuit = CircuitBreaker(3, 100, 400)
    states = []
    for now_ms in (0, 0, 5):
        assert circuit.may_try(now_ms)
        circuit.failed(now_ms)
        states.append(circuit.state)
    assert states == ["closed", "closed", "open"]
    assert circuit.retry_at_ms == 105
    assert not circuit.may_try(104)


def test_a_success_between_failures_keeps_the_circuit_closed() -> None:
    circuit = CircuitBreaker(2, 100, 400)
    for now_ms in range(10):
        circuit.failed(now_ms)
        circuit.succeeded()
    assert circuit.state == "closed"
    assert circuit.retry_at_ms == 0


def test_a_half_open_circuit_allows_one_trial() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    assert circuit.state == "half-open"
    assert not circuit.may_try(100)
    assert not circuit.may_try(199)


def test_a_successful_trial_closes_the_circuit() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    circuit.succeeded()
    assert circuit.state == "closed"
    assert circuit.may_try(110)
    assert circuit.may_try(110)


def test_each_failed_trial_doubles_the_open_time_up_to_a_limit() -> None:
    circuit = opened()
    waits = []
    for _ in range(4):
        now_ms = circuit.retry_at_ms
        assert circuit.may_try(now_ms)
        circuit.failed(now_ms)
        waits.append(circuit.retry_at_ms - now_ms)
    assert waits == [200, 400, 400, 400]


def test_a_success_resets_the_open_time() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    circuit.failed(100)
    circuit.succeeded()
    for _ in range(3):
        circuit.failed(200)
    assert circuit.retry_at_ms == 300


def test_a_trial_without_a_result_does_not_block_the_next() -> None:
    circuit = opened()
    assert circuit.may_try(100)
    assert not circuit.may_try(199)
    assert circuit.may_try(200)


def test_late_failures_do_not_extend_the_open_time() -> None:
    circuit = opened()
    circuit.failed(50)
    circuit.failed(99)
    assert circuit.retry_at_ms == 100


class Callers(RuleBasedStateMachine):
    """Many callers that report their results at any time, against the rules of the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit = CircuitBreaker(3, 100, 1000)
        self.now_ms = 0
        self.failures_in_a_row = 0

    @rule(milliseconds=st.integers(0, 400))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def caller_sends(self) -> None:
        was_closed = self.circuit.state == "closed"
        due_ms = self.circuit.retry_at_ms
        allowed = self.circuit.may_try(self.now_ms)
        assert allowed == (was_closed or self.now_ms >= due_ms)
        if allowed and not was_closed:
            assert self.circuit.state == "half-open"
            assert not self.circuit.may_try(self.now_ms)

    @rule()
    def send_succeeds(self) -> None:
        self.failures_in_a_row = 0
        self.circuit.succeeded()
        assert self.circuit.state == "closed"

    @rule()
    def send_fails(self) -> None:
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
    def a_trial_is_allowed_after_the_open_time(self) -> None:
        self.now_ms = max(self.now_ms, self.circuit.retry_at_ms)
        assert self.circuit.may_try(self.now_ms)

    @invariant()
    def closed_only_below_the_failure_limit(self) -> None:
        assert (self.circuit.state == "closed") == (self.failures_in_a_row < 3)

    @invariant()
    def open_time_is_at_most_the_cap(self) -> None:
        assert self.circuit.retry_at_ms <= self.now_ms + 1000


TestCallers = Callers.TestCase
