"""The id of the current request, which the server writes to its log and returns in the header `x-request-id`.

A protocol sets it where a request begins. Log lines of that task and of tasks that it starts carry it.
"""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty outside of a request."""
