"""Sizes are parsed with their units."""

from __future__ import annotations

import pytest

from headrace.pipeline.settings import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512kB", 512_000), ("128MB", 128_000_000), ("1GiB", 1 << 30), ("2 TiB", 2 << 40), ("7 b", 7)],
)
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1.5GB", "1XB", "1 MB MB", "٣MB"])
def test_invalid_sizes_are_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write 4096, 512kB, 128MB or 1GiB"):
        parse_size(text)
