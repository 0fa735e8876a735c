"""The library: found or not, of one piece with what calls it, and right in its sums."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from ctypes import c_char_p, c_int64, c_uint32
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.native import library as module
from headrace.native.library import Library, library

NEEDS_LIBRARY = pytest.mark.skipif(library() is None, reason="the library was not built")


def test_it_is_left_alone_where_pure_python_is_asked_for() -> None:
    script = "from headrace.native.library import library; print(library())"
    environment = {**os.environ, "HEADRACE_PURE": "1"}
    told = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout == "None\n"


@NEEDS_LIBRARY
def test_one_that_was_built_from_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "VERSION", 0)
    library.cache_clear()
    assert library() is None
    assert "install headrace again" in caplog.text
    monkeypatch.undo()
    library.cache_clear()
    assert isinstance(library(), Library)


def test_it_knows_nothing_of_python() -> None:
    sources = [path for path in Path(module.__file__).parent.iterdir() if path.suffix in {".c", ".h"}]
    assert sources
    assert not [path.name for path in sources if "Python.h" in path.read_text()]


@NEEDS_LIBRARY
@given(st.binary(max_size=300) | st.integers(6000, 30000).map(lambda size: random.Random(size).randbytes(size)))
def test_its_checksum_is_crc_32c(data: bytes) -> None:
    found = library()
    assert found is not None
    if found.has_crc32c:
        crc32c = found.function("headrace_crc32c", c_uint32, c_char_p, c_int64, keeps_lock=True)
        assert crc32c(data, len(data)) == google_crc32c.value(data)
