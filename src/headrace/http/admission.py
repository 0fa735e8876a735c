"""The check of a request whose body is still to come: whether it is served, decided by its head alone.

The application's `admit` starts when the head is complete. While it is pending the body is not read, so a client
without a valid token cannot make the server keep a body. `failure` is what `admit` raised. An admission holds for the
moment of its head (`at`): a request whose body is complete later is admitted again before it is acted on, otherwise a
slow body would carry out a request long after its token was revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.http.message import Request
from headrace.runtime.inline_start import start_inline
from headrace.runtime.request_ids import request_id

if TYPE_CHECKING:
    from headrace.http.listener import HttpListener


class RequestAdmission:
    """`on_done` is called if the check had to wait, when it is over. `at` is when the head was read."""

    __slots__ = ("_on_done", "_task", "at", "failure")

    def __init__(
        self, listener: HttpListener, request: Request, at: float, on_done: Callable[[RequestAdmission], None]
    ) -> None:
        self.at = at
        self.failure: BaseException | None = None
        self._on_done = on_done
        self._task: asyncio.Task[None] | None = None
        before = request_id.set(request.id)
        try:
            outcome = start_inline(listener.application.admit(request), listener.loop)
        except Exception as error:
            self.failure = error
        else:
            if isinstance(outcome, asyncio.Task):
                self._task = outcome
                outcome.add_done_callback(self._end)
        finally:
            request_id.reset(before)

    @property
    def is_pending(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Return when the request is admitted; raise what it failed with."""
        if self._task is not None:
            await asyncio.wait((self._task,))
        if self.failure is not None:
            raise self.failure

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._on_done(self)
