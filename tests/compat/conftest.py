"""One broker with default settings for all compatibility tests, or the broker in HEADRACE_TEST_BROKER.

With a real Kafka at that address, the tests show how Kafka behaves.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.process import BrokerProcess, outside_broker

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python 3.0 reads its schemas with a function that Python 3.11 deprecates.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    outside = outside_broker()
    if outside is not None:
        yield outside
        return
    folder: Path = tmp_path_factory.mktemp("compat")
    broker = BrokerProcess(folder).start()
    yield broker.address
    broker.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of a topic or group that no other test of any run uses."""
    test = request.node.name.split("[")[0].removeprefix("test_")
    return f"{test[:80]}-{os.getpid()}-{next(_numbers)}"
