"""The body of every HTTP error response: `{"code": ..., "message": ..., "next": ...}`.

`code` is for programs and never changes. `message` says what was wrong with the request, `next` what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.http.message import JSON, Header, Response


class ProblemBody(msgspec.Struct):
    code: str
    message: str
    next: str


class Problem(Exception):
    """An error response, raised by handlers and sent by their callers."""

    def __init__(self, status: int, code: str, message: str, next_step: str, headers: Sequence[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.next_step = next_step
        self.headers = headers

    def response(self) -> Response:
        body = msgspec.json.encode(ProblemBody(self.code, self.message, self.next_step))
        return Response(self.status, body, JSON, self.headers)
