"""Response heads: bounded caches, and no header injection."""

from __future__ import annotations

import pytest

from headrace.http.message import Response
from headrace.http.response_heads import ResponseHeads, has_body


def sized(heads: ResponseHeads, response: Response) -> bytes:
    return heads.sized(response.status, response.content_type, len(response.body), response.headers, "id", "")


def test_the_date_is_that_of_the_last_tick() -> None:
    heads = ResponseHeads(0)
    assert b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in sized(heads, Response())
    heads.tick(1_700_000_000_999)
    assert b"date: Tue, 14 Nov 2023 22:13:20 GMT\r\n" in sized(heads, Response())


def test_a_status_without_a_reason_is_valid() -> None:
    assert sized(ResponseHeads(0), Response(299)).startswith(b"HTTP/1.1 299 \r\n")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "\u20ac"])
def test_a_header_that_is_not_one_line_of_latin_1_is_rejected(value: str) -> None:
    for response in (Response(200, b"", value), Response(200, b"", "text/plain", [("x", value)])):
        with pytest.raises(ValueError, match=r"must be one printable line|latin-1"):
            sized(ResponseHeads(0), response)


def test_the_cache_of_content_types_is_bounded() -> None:
    heads = ResponseHeads(0)
    for number in range(1000):
        assert f"content-type: x/{number}\r\n".encode() in sized(heads, Response(200, b"", f"x/{number}"))
    assert len(heads._pieces) <= 256


def test_responses_with_and_without_a_body() -> None:
    assert has_body("GET", 200)
    assert not has_body("HEAD", 200)
    assert not has_body("GET", 204)
    assert not has_body("GET", 304)
