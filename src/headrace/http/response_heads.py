"""Build response heads from cached pieces.

A header value with a line break raises an error, so that an application cannot inject headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from time import gmtime

from headrace.http.message import Header, StreamedResponse

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PIECES_KEPT_MAX = 256  # bounded, because publishers choose the content types

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Content Too Large",  # RFC 9110 renamed these three; Python 3.11 has the old phrases
    414: "URI Too Long",
    422: "Unprocessable Content",
}
_WITHOUT_BODY = (204, 304)


def has_body(method: str, status: int) -> bool:
    """Whether a response to such a request may have a body."""
    return method != "HEAD" and status not in _WITHOUT_BODY


class ResponseHeads:
    """Builds response heads. Call `tick` once a second to update the date."""

    def __init__(self, now_ms: int) -> None:
        self._pieces: dict[tuple[int, str], str] = {}
        self._date = ""
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        at = gmtime(now_ms // 1000)
        day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
        clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
        self._date = f"date: {day}, {at.tm_mday:02} {month} {at.tm_year} {clock} GMT\r\n"

    def sized(
        self, status: int, content_type: str, size: int, headers: Sequence[Header], request_id: str, connection: str
    ) -> bytes:
        """Return the head of a response with a body of this size; `connection` is the value of that header, or
        empty."""
        piece = self._pieces.get((status, content_type)) or self._piece(status, content_type)
        length = "" if status in _WITHOUT_BODY else f"content-length: {size}\r\n"
        more = self._lines(headers, connection) if headers or connection else ""
        return f"{piece}{length}x-request-id: {request_id}\r\n{self._date}{more}\r\n".encode("latin-1")

    def streamed(self, response: StreamedResponse, request_id: str, connection: str, *, chunked: bool) -> bytes:
        """Return the head of a response that ends with an empty chunk, or with the connection for HTTP/1.0 clients."""
        key = response.status, response.content_type
        piece = self._pieces.get(key) or self._piece(*key)
        ending = "transfer-encoding: chunked\r\n" if chunked else ""
        more = self._lines(response.headers, connection)
        return f"{piece}{ending}x-request-id: {request_id}\r\n{self._date}{more}\r\n".encode("latin-1")

    def upgraded(self, headers: Sequence[Header], request_id: str) -> bytes:
        line = f"HTTP/1.1 101 {_REASONS[101]}\r\nupgrade: websocket\r\n"
        more = self._lines(headers, "Upgrade")
        return f"{line}x-request-id: {request_id}\r\n{self._date}{more}\r\n".encode("latin-1")

    def _piece(self, status: int, content_type: str) -> str:
        line = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"
        piece = line if status in _WITHOUT_BODY else f"{line}{_line('content-type', content_type)}"
        if len(self._pieces) < _PIECES_KEPT_MAX:
            self._pieces[status, content_type] = piece
        return piece

    def _lines(self, headers: Sequence[Header], connection: str) -> str:
        lines = "".join([_line(name, value) for name, value in headers])
        return f"{lines}connection: {connection}\r\n" if connection else lines


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}"
    if not line.isprintable():
        raise ValueError(f"the response header {name} must be one printable line, not {value!r}")
    return f"{line}\r\n"
