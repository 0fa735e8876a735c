"""The library: found or not, of one piece with what calls it, and unmoved by what it is given."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.columns.mutations import SEEDS, mutated, survives
from tests.unit.columns.ways import NEEDS_LIBRARY, the_library

from headrace.columns import native
from headrace.columns.native import CLibrary, NativeRows, address_of, library
from headrace.columns.schema import COLUMNS
from headrace.model.errors import InvalidRecord
from headrace.wire.batch import set_crc

pytestmark = NEEDS_LIBRARY


def test_it_is_left_alone_where_pure_python_is_asked_for() -> None:
    script = "from headrace.columns.native import library; print(library())"
    environment = {**os.environ, "HEADRACE_PURE": "1"}
    told = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout == "None\n"


def test_one_that_was_built_from_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "_LAYOUT", 0)
    library.cache_clear()
    assert library() is None
    assert "install headrace again" in caplog.text
    monkeypatch.undo()
    library.cache_clear()
    assert isinstance(library(), CLibrary)


def test_it_knows_nothing_of_python() -> None:
    assert "Python.h" not in Path(native.__file__).with_name("records.c").read_text()


@given(st.binary(max_size=300) | st.integers(6000, 30000).map(lambda size: random.Random(size).randbytes(size)))
def test_its_checksum_is_crc_32c(data: bytes) -> None:
    assert the_library().crc32c(memoryview(data), address_of(data)) == google_crc32c.value(data)


def test_memory_grows_with_what_is_there_and_not_with_what_a_header_claims() -> None:
    batch = bytearray(SEEDS[0])
    batch[57:61] = ((1 << 31) - 1).to_bytes(4, "big")
    set_crc(memoryview(batch))
    rows = NativeRows(the_library(), COLUMNS)
    with pytest.raises(InvalidRecord):
        rows.add_plain(memoryview(batch), 0, 0, 100, 100, 100)
    assert rows._rows.offsets.capacity <= 4096


def test_altered_bytes_never_lead_it_astray() -> None:
    """The short version of `python -m tests.unit.columns.mutations`."""
    chance = random.Random(1)
    for _ in range(3000):
        survives(mutated(chance, chance.choice(SEEDS)))
