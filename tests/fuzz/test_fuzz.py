"""The quick form of the fuzzing: well-formed inputs, bent at random, into every target; only typed errors come out.

HEADRACE_FUZZ_EXAMPLES sets how many per target (200 by default).
"""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, UNPACKED_MAX

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "200"))
SEEDS = {name: seeds(name) for name in TARGETS}

Bend = tuple[str, int, bytes]

BENDS = st.lists(
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


def bent(data: bytes, bends: list[Bend]) -> bytes:
    for kind, place, piece in bends:
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
def test_only_typed_errors_come_out_of_bent_inputs(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(SEEDS[name]), BENDS)
    def check(seed: bytes, bends: list[Bend]) -> None:
        target(bent(seed, bends))

    check()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_only_typed_errors_come_out_of_any_bytes(name: str) -> None:
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


@pytest.mark.parametrize("name", ["frame", "request", "batch", "sealed_batch", "compression"])
def test_no_input_makes_a_target_allocate_much(name: str) -> None:
    inputs = [seed + b"\xff" * 40 for seed in SEEDS[name]] + [b"\x7f\xff\xff\xff" * 20, *SEEDS[name]]
    for data in inputs:
        TARGETS[name](data)  # once before the measurement, because codecs are compiled at first use
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
