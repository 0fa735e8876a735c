"""A limit on the number of calls: a loop that makes no progress fails at once instead of running into a time-out."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Self


class TooManySteps(BaseException):
    """Not an `Exception`, so that the code under test does not handle it."""


class StepLimit:
    """Raises `TooManySteps` when more than `most` calls of Python functions begin inside the block.

    Code in between may still swallow the exception, such as a callback of a C parser; so the end of the block
    raises it as well.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.steps = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        if self.steps > self.most:
            raise TooManySteps(f"more than {self.most} calls")

    def _on_call(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """None: the lines of the function are not traced."""
        self.steps += 1
        if self.steps > self.most:
            raise TooManySteps(f"more than {self.most} calls")
