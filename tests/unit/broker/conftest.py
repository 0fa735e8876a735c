"""Run `async def` tests that take a `simulated_broker` in its virtual time."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.testkit.world import World


@pytest.fixture
def simulated_broker() -> Iterator[SimulatedBroker]:
    world = World(seed=1)
    simulated_broker = SimulatedBroker(world)
    world.run(simulated_broker.open())
    yield simulated_broker
    world.run(simulated_broker.pass_time(1))  # let background work end
    simulated_broker.check()
    world.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    simulated_broker = pyfuncitem.funcargs.get("simulated_broker")
    if not isinstance(simulated_broker, SimulatedBroker) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    simulated_broker.world.run(pyfuncitem.obj(**arguments))
    return True
