"""Tests of the broker run in virtual time: an `async def` test that takes a `house` runs in its world."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.unit.broker.house import House

from headrace.testkit.world import World


@pytest.fixture
def house() -> Iterator[House]:
    world = World(seed=1)
    house = House(world)
    world.run(house.open())
    yield house
    world.run(house.pass_time(1))  # whatever is under way shall end
    house.check()
    world.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    house = pyfuncitem.funcargs.get("house")
    if not isinstance(house, House) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    house.world.run(pyfuncitem.obj(**arguments))
    return True
