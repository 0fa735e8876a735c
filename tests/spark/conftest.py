"""One Spark session and one broker for all tests of this folder, because both take seconds to start.

The session starts without an installed Java: none on the PATH, and no JAVA_HOME. Tests create their own topics
(`topic`).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    # Py4J does not close its sockets explicitly.
    careless = pytest.mark.filterwarnings(
        "ignore:unclosed <socket:ResourceWarning",
        "ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning",
    )
    for item in items:
        if here in item.path.parents:
            item.add_marker(careless)


@pytest.fixture(scope="session")
def without_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set a PATH without Java, and no JAVA_HOME."""
    folder = tmp_path_factory.mktemp("commands")
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            if not command.name.startswith("java") and not os.path.lexists(folder / command.name):
                (folder / command.name).symlink_to(command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        patch.delenv("JAVA_HOME", raising=False)
        yield


@pytest.fixture(scope="session")
def spark(without_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark import SparkContext

    from headrace.spark import session

    folder = tmp_path_factory.mktemp("spark")
    conf = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    started = session("tests", master="local[2]", conf=conf)
    yield started
    started.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends when its input ends
    gateway.proc.wait(PATIENCE_SECONDS)
    SparkContext._gateway = None
    SparkContext._jvm = None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests of this folder share; no test may stop it."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield process
    process.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; the test creates the topic."""
    return f"{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())[:60]}-{next(_numbers)}"
