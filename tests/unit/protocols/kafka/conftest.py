"""Tests of the Kafka listener run in virtual time: an `async def` test with a `connection_harness` runs in its
world."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.unit.protocols.kafka.connection_harness import ConnectionHarness

from headrace.testkit.world import World


@pytest.fixture
def connection_harness() -> Iterator[ConnectionHarness]:
    world = World(seed=1)
    connection_harness = ConnectionHarness(world)
    yield connection_harness
    connection_harness.check()
    world.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    connection_harness = pyfuncitem.funcargs.get("connection_harness")
    if not isinstance(connection_harness, ConnectionHarness) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    connection_harness.world.run(pyfuncitem.obj(**arguments))
    return True
