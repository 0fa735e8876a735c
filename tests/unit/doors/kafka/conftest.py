"""Tests of the door run in virtual time: an `async def` test that takes a `doorstep` runs in its world."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.unit.doors.kafka.doorstep import Doorstep

from headrace.testkit.world import World


@pytest.fixture
def doorstep() -> Iterator[Doorstep]:
    world = World(seed=1)
    doorstep = Doorstep(world)
    yield doorstep
    doorstep.check()
    world.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    doorstep = pyfuncitem.funcargs.get("doorstep")
    if not isinstance(doorstep, Doorstep) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    doorstep.world.run(pyfuncitem.obj(**arguments))
    return True
