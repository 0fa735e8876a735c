"""Fuzz every target briefly with mutated well-formed inputs: only typed errors may be raised.

HEADRACE_FUZZ_EXAMPLES sets the number of examples per target (by default 200).
"""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz import http_reader, rest
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, UNPACKED_MAX

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "200"))
SEEDS = {name: seeds(name) for name in TARGETS}

Mutation = tuple[str, int, bytes]

MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "cut", "repeat"]),
        st.integers(0, 2**16),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from(
                [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f", bytes(8)]
            ),
        ),
    ),
    max_size=6,
)


def mutated(data: bytes, mutations: list[Mutation]) -> bytes:
    for kind, place, piece in mutations:
        position = place % (len(data) + 1)
        if kind == "replace":
            data = data[:position] + piece + data[position + len(piece) :]
        elif kind == "insert":
            data = data[:position] + piece + data[position:]
        elif kind == "cut":
            data = data[:position]
        else:
            data = data + data[position:]
    return data


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_mutated_inputs_raise_only_typed_errors(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(SEEDS[name]), MUTATIONS)
    def check(seed: bytes, mutations: list[Mutation]) -> None:
        target(mutated(seed, mutations))

    check()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_arbitrary_bytes_raise_only_typed_errors(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        target(data)

    check()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_well_formed_input_passes(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


def test_the_http_reader_survives_a_thousand_mutated_requests_and_attacks() -> None:
    """`python -m tests.fuzz.http_reader` runs a million."""
    report = http_reader.run(seed=1, inputs=max(5 * EXAMPLES, 1000))
    assert report.grown_bytes < http_reader.GROWTH_BYTES_MAX
    assert {200, 400, 401, 405, 413} <= set(report.statuses)


def test_random_rest_requests_of_a_tenant_do_not_affect_others() -> None:
    """`python -m tests.fuzz.rest` runs a million."""
    report = rest.run(seed=1, inputs=max(EXAMPLES, 200))
    assert report.grown_bytes < rest.GROWTH_BYTES_MAX
    assert {200, 201, 401, 403, 404, 422} <= set(report.statuses)
    refused = report.statuses[401] + report.statuses[403]
    assert refused < report.statuses.total() / 2, "at least half of the inputs must pass authorization"


def test_the_rest_fuzzer_detects_a_tenant_that_affects_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "scope_of", lambda _tenant: "manage:*")
    with pytest.raises(rest.Failure, match=r"has changed|got what is"):
        rest.run(seed=1, inputs=1000)


def test_the_rest_fuzzer_detects_a_loop_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "STEPS_MAX", 1000)
    with pytest.raises(rest.Failure, match=r"seed 1, input \d+, .*TooManySteps"):
        rest.run(seed=1, inputs=1000)


@pytest.mark.parametrize("name", ["frame", "request", "batch", "sealed_batch", "compression"])
def test_no_input_causes_large_allocations(name: str) -> None:
    inputs = [seed + b"\xff" * 40 for seed in SEEDS[name]] + [b"\x7f\xff\xff\xff" * 20, *SEEDS[name]]
    for data in inputs:
        TARGETS[name](data)  # once before the measurement, because codecs are compiled on first use
    tracemalloc.start()
    try:
        for data in inputs:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            TARGETS[name](data)
            _, most = tracemalloc.get_traced_memory()
            assert most - before < 8 * UNPACKED_MAX, f"{len(data)} bytes made the target take {most - before}"
    finally:
        tracemalloc.stop()
