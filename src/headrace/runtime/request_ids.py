"""The id of the request that is being worked on, for the log: it is what the client was told in `x-request-id`.

A door sets it where a request begins; whatever is logged from there on, in the same task or one that it starts, bears
it.
"""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty where no request is the cause."""
