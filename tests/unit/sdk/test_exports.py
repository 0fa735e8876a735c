"""The exports of `headrace` exist and are imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
import headrace.sdk
import headrace.testkit

LATER = """
import sys
import {package}
early = sorted(set({names}) & set(sys.modules))
assert not early, early
"""


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("headrace", ["asyncio", "msgspec", "headrace.sdk", "headrace.client"]),
        (
            "headrace.client",
            [
                "asyncio",
                "headrace.client.cluster",
            ],
        ),
        ("headrace.testkit", ["headrace.broker"]),
    ],
)
def test_unused_modules_are_not_imported(package: str, names: list[str]) -> None:
    subprocess.run([sys.executable, "-c", LATER.format(package=package, names=names)], check=True)


def test_every_exported_name_exists() -> None:
    for module in (headrace, headrace.testkit):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_headrace_exports_the_names_of_the_sdk() -> None:
    assert headrace.__all__ == headrace.sdk.__all__
    assert headrace.Client is headrace.sdk.Client


@pytest.mark.parametrize("module", [headrace, headrace.testkit])
def test_an_unknown_name_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
        _ = module.Kafka  # type: ignore[attr-defined]
