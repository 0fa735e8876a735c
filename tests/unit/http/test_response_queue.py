"""The response queue: order of responses, pipelining, disconnects, errors."""

from __future__ import annotations

import logging

import pytest
from tests.unit.http.http_harness import HttpHarness, parse, settled


async def test_a_response_has_length_date_and_request_id() -> None:
    response = HttpHarness().http_client().asks("/a?b=c").answer()
    assert response.status == 200
    assert response.path == "/a"
    assert response.headers == {
        "content-type": "application/json",
        "content-length": str(len(response.body)),
        "x-request-id": response.headers["x-request-id"],
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
    }


async def test_the_application_gets_the_request_as_it_was_sent() -> None:
    harness = HttpHarness()
    harness.http_client("10.0.0.7").asks(
        "/a%2Fb?x=1&y=a+b%21&x=2", "PUT", "X-Many: 1\r\nx-many: 2\r\nAccept: caf\xe9\r\n", b"abc"
    )
    (request,) = harness.script.requests
    assert (request.method, request.path, request.query) == ("PUT", "/a%2Fb", {"x": "2", "y": "a b!"})
    assert (request.body, request.peer, request.params) == (b"abc", "10.0.0.7", {})
    assert request.headers["x-many"] == "1, 2"


async def test_a_request_has_the_id_of_the_client_or_a_generated_one() -> None:
    http_client = HttpHarness().http_client()
    for headers in ("", "", "X-Request-Id: mine\r\n", f"X-Request-Id: {'x' * 129}\r\n", "X-Request-Id: \xe9\r\n"):
        http_client.asks("/a", headers=headers)
    first, second, third, *rest = [response.headers["x-request-id"] for response in http_client.answers()]
    assert third == "mine"
    assert len({first, second, third, *rest}) == 5
    assert all(one.isascii() and len(one) < 40 for one in rest)


async def test_a_connection_serves_several_requests() -> None:
    http_client = HttpHarness().http_client()
    for number in range(40):
        http_client.asks(f"/{number}")
    assert [response.path for response in http_client.answers()] == [f"/{number}" for number in range(40)]
    assert not http_client.is_hung_up_on


async def test_responses_are_in_the_order_of_the_requests() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/one").asks("/two").asks("/wait/three").asks("/four")
    assert harness.script.started == ["/wait/one", "/two", "/wait/three", "/four"]
    harness.script.open("three")
    await settled()
    assert http_client.answers() == []
    harness.script.open("one")
    await settled()
    assert [response.path for response in http_client.answers()] == ["/wait/one", "/two", "/wait/three", "/four"]


async def test_responses_to_pipelined_requests_are_sent_in_one_write() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    writes: list[int] = []
    http_client.line.writelines = lambda list_of_data: writes.append(len(list_of_data))  # type: ignore[method-assign]
    http_client.sends("GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
    assert writes == [5]


async def test_a_response_to_head_has_the_length_but_no_body() -> None:
    http_client = HttpHarness().http_client().asks("/a", "HEAD").asks("/b")
    first, second = http_client.answers("HEAD", "GET")
    assert int(first.headers["content-length"]) == len(second.body)
    assert (first.body, second.path) == (b"", "/b")


async def test_a_204_has_neither_length_nor_content_type() -> None:
    response = HttpHarness().http_client().asks("/empty").answer()
    assert response.status == 204
    assert not {"content-length", "content-type"} & set(response.headers)


async def test_options_lists_the_methods_of_a_path() -> None:
    http_client = HttpHarness().http_client().asks("/post-only", "OPTIONS").asks("*", "OPTIONS").asks("/a", "OPTIONS")
    first, second, third = http_client.answers()
    assert (first.status, first.headers["allow"], first.body) == (204, "GET, HEAD, OPTIONS, POST", b"")
    assert (second.status, second.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
    assert third.status == 200


async def test_connection_close_is_honoured() -> None:
    http_client = HttpHarness().http_client().asks("/a", headers="Connection: close\r\n")
    assert http_client.answer().headers["connection"] == "close"
    assert http_client.line.closed


async def test_an_http_1_0_connection_is_closed_unless_keep_alive() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends("GET /a HTTP/1.0\r\n\r\n")
    assert http_client.answer().headers["connection"] == "close"
    assert http_client.line.closed
    http_client = harness.http_client().sends("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert http_client.answer().headers["connection"] == "keep-alive"
    assert not http_client.is_hung_up_on


async def test_input_after_the_last_request_is_ignored() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    http_client.sends("GET /wait/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
    http_client.sends("GET /c HTTP/1.1\r\nHost: x\r\n\r\n")
    harness.script.open("a")
    await settled()
    assert http_client.answer().path == "/wait/a"
    assert harness.script.started == ["/wait/a"]


@pytest.mark.parametrize("path", ["/problem", "/wait/problem"])
async def test_a_problem_is_sent_and_the_connection_continues(path: str) -> None:
    harness = HttpHarness()
    harness.script.open("problem")
    http_client = harness.http_client().asks(path)
    await settled()
    response = http_client.answer()
    assert response.body == b'{"code":"conflicting","message":"it conflicts","next":"do not"}'
    assert (response.status, response.headers["retry-after"]) == (409, "3")
    assert not http_client.is_hung_up_on


@pytest.mark.parametrize("path", ["/bug", "/wait/bug"])
async def test_an_exception_is_a_500_and_is_logged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    harness = HttpHarness()
    harness.script.open("bug")
    http_client = harness.http_client().asks(path)
    await settled()
    response = http_client.answer()
    assert (response.status, response.code) == (500, "internal_error")
    assert response.headers["x-request-id"] in response.body.decode()
    assert "ZeroDivisionError" in caplog.text
    assert harness.listener.failures == 1
    assert http_client.asks("/a").answers()[1].status == 200


async def test_a_line_break_in_a_response_header_is_a_500() -> None:
    http_client = HttpHarness().http_client().asks("/splitting")
    response = http_client.answer()
    assert response.status == 500
    assert b"set-cookie" not in http_client.line.written


async def test_a_disconnect_cancels_read_requests_but_not_writes() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a").asks("/wait/b", "POST", body=b"x").asks("/wait/c", "HEAD")
    await settled()
    http_client.line.lose()
    await settled()
    assert sorted(harness.script.cancelled) == ["/wait/a", "/wait/c"]
    harness.script.open("b")
    await settled()
    assert harness.listener.budget.taken == 0


async def test_a_half_closed_client_gets_its_response() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a")
    await settled()
    http_client.sends_eof()
    assert not http_client.is_hung_up_on
    harness.script.open("a")
    await settled()
    response = http_client.answer()
    assert (response.path, response.headers["connection"]) == ("/wait/a", "close")
    assert http_client.line.closed


async def test_a_half_closed_connection_without_a_request_is_closed() -> None:
    http_client = HttpHarness().http_client().asks("/a")
    http_client.sends_eof()
    assert http_client.line.closed


async def test_a_half_closed_long_poll_is_probed_twice() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a")
    await settled()
    http_client.sends_eof()
    for _ in range(5):
        harness.wait(1)
    assert http_client.line.written == b"HTTP/1.1 100 Continue\r\n\r\n" * 2


async def test_a_half_closed_write_is_not_probed() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a", "POST")
    await settled()
    http_client.sends_eof()
    harness.wait(1)
    assert http_client.line.written == b""


async def test_requests_and_bytes_are_counted() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/a").asks("/problem").asks("/bug", "DELETE").sends("nonsense\r\n\r\n")
    listener = harness.listener
    assert listener.requests == [0, 0, 1, 0, 2, 1]
    assert (listener.refused, listener.failures, listener.durations.count) == (1, 1, 4)
    assert listener.bytes_out == len(http_client.line.written)
    assert listener.bytes_in > 100
    assert (len(listener.connections), listener.accepted) == (1, 1)


async def test_a_request_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        HttpHarness().http_client().asks("/a?token=hush", headers="Authorization: Bearer hush\r\n")
    assert "request method=GET path=/a status=200 ms=0.0 peer=127.0.0.1 caller=-" in caplog.text
    assert "hush" not in caplog.text


async def test_no_large_responses_are_created_for_a_client_that_does_not_read() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    http_client.line.is_taken = False
    http_client.sends(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    assert not http_client.line.reads
    begun = len(harness.script.started)
    assert begun < 50
    http_client.line.is_taken = True
    http_client.line.take()
    await settled()
    assert len(parse(http_client.line.written)) == 100
    assert http_client.line.reads
