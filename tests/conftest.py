"""Setup of all tests: coroutine tests, the Hypothesis profiles, and restored logging.

`async def test_...` runs on a new event loop, without a plug-in.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples in every run, so that a failure is reproducible. `explore` searches for new ones.
settings.register_profile("check", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the root logger: a server inside a test configures it to write to the stderr of that test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
