"""What stands in `headrace` and `headrace.client` is there when it is asked for, and costs nothing before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
import headrace.client
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
                "headrace.client.queues.request_reply",
                "headrace.client.queues.dead_letters",
                "headrace.client.transactions.transactional_producer",
            ],
        ),
        ("headrace.testkit", ["headrace.broker"]),
    ],
)
def test_nobody_waits_for_what_he_does_not_use(package: str, names: list[str]) -> None:
    subprocess.run([sys.executable, "-c", LATER.format(package=package, names=names)], check=True)


def test_every_name_is_there() -> None:
    for module in (headrace, headrace.client, headrace.testkit):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_the_short_names_are_those_of_the_sdk() -> None:
    assert headrace.__all__ == headrace.sdk.__all__
    assert headrace.Client is headrace.sdk.Client


@pytest.mark.parametrize("module", [headrace, headrace.client, headrace.testkit])
def test_what_is_not_there_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
        _ = module.Kafka  # type: ignore[attr-defined]
