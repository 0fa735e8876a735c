"""The functions for columns: of one piece with what calls them, and unmoved by what they are given."""

from __future__ import annotations

import random

import pytest
from tests.unit.columns.implementations import NEEDS_LIBRARY, the_library
from tests.unit.columns.mutations import survives
from tests.unit.native.mutations import SEEDS, mutated

from headrace.columns import native
from headrace.columns.native import CLibrary, NativeRows, library
from headrace.columns.schema import COLUMNS
from headrace.model.errors import InvalidRecord
from headrace.wire.batches.batch import set_crc

pytestmark = NEEDS_LIBRARY


def test_one_whose_structs_are_others_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "_LAYOUT", 0)
    library.cache_clear()
    assert library() is None
    assert "install headrace again" in caplog.text
    monkeypatch.undo()
    library.cache_clear()
    assert isinstance(library(), CLibrary)


def test_memory_grows_with_what_is_there_and_not_with_what_a_header_claims() -> None:
    batch = bytearray(SEEDS[0])
    batch[57:61] = ((1 << 31) - 1).to_bytes(4, "big")
    set_crc(memoryview(batch))
    rows = NativeRows(the_library(), COLUMNS)
    with pytest.raises(InvalidRecord):
        rows.add_uncompressed(memoryview(batch), 0, 0, 100, 100, 100)
    assert rows._rows.offsets.capacity <= 4096


def test_altered_bytes_never_lead_it_astray() -> None:
    """The short version of `python -m tests.unit.columns.mutations`."""
    chance = random.Random(1)
    for _ in range(3000):
        survives(mutated(chance, chance.choice(SEEDS)))
