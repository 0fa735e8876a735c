"""What all tests share: coroutines as tests, and one Hypothesis profile.

`async def test_...` runs on a fresh event loop of its own; no plug-in is needed for that.
"""

from __future__ import annotations

import asyncio
import inspect
import os

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
