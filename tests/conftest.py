"""What all tests share: coroutines as tests, one Hypothesis profile, and logging as it was before.

`async def test_...` runs on a fresh event loop of its own; no plug-in is needed for that.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples in every run, so that a red check is red again. `explore` looks for new ones.
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
def logging_as_it_was() -> Iterator[None]:
    """A server that ran inside a test logs to what was stderr there; nobody else may."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
