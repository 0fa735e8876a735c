"""Answers: in the order of the requests, whole, and for whoever is still there."""

from __future__ import annotations

import logging

import pytest
from tests.unit.http.visitors import House, parse, settled


async def test_an_answer_has_its_length_the_date_and_an_id() -> None:
    answer = House().visitor().asks("/a?b=c").answer()
    assert answer.status == 200
    assert answer.path == "/a"
    assert answer.headers == {
        "content-type": "application/json",
        "content-length": str(len(answer.body)),
        "x-request-id": answer.headers["x-request-id"],
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
    }


async def test_a_request_is_given_to_the_application_as_it_was_sent() -> None:
    house = House()
    house.visitor("10.0.0.7").asks(
        "/a%2Fb?x=1&y=a+b%21&x=2", "PUT", "X-Many: 1\r\nx-many: 2\r\nAccept: caf\xe9\r\n", b"abc"
    )
    (request,) = house.script.requests
    assert (request.method, request.path, request.query) == ("PUT", "/a%2Fb", {"x": "2", "y": "a b!"})
    assert (request.body, request.peer, request.params) == (b"abc", "10.0.0.7", {})
    assert request.headers["x-many"] == "1, 2"


async def test_every_request_has_an_id_of_its_own_or_that_of_the_client() -> None:
    visitor = House().visitor()
    for headers in ("", "", "X-Request-Id: mine\r\n", f"X-Request-Id: {'x' * 129}\r\n", "X-Request-Id: \xe9\r\n"):
        visitor.asks("/a", headers=headers)
    first, second, third, *rest = [answer.headers["x-request-id"] for answer in visitor.answers()]
    assert third == "mine"
    assert len({first, second, third, *rest}) == 5
    assert all(one.isascii() and len(one) < 40 for one in rest)


async def test_the_connection_serves_one_request_after_the_other() -> None:
    visitor = House().visitor()
    for number in range(40):
        visitor.asks(f"/{number}")
    assert [answer.path for answer in visitor.answers()] == [f"/{number}" for number in range(40)]
    assert not visitor.is_hung_up_on


async def test_no_answer_overtakes_an_earlier_one() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/one").asks("/two").asks("/wait/three").asks("/four")
    assert house.script.started == ["/wait/one", "/two", "/wait/three", "/four"]
    house.script.open("three")
    await settled()
    assert visitor.answers() == []
    house.script.open("one")
    await settled()
    assert [answer.path for answer in visitor.answers()] == ["/wait/one", "/two", "/wait/three", "/four"]


async def test_pipelined_requests_leave_in_one_write() -> None:
    house = House()
    visitor = house.visitor()
    writes: list[int] = []
    visitor.line.writelines = lambda list_of_data: writes.append(len(list_of_data))  # type: ignore[method-assign]
    visitor.sends("GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
    assert writes == [5]


async def test_head_has_the_length_but_not_the_body() -> None:
    visitor = House().visitor().asks("/a", "HEAD").asks("/b")
    first, second = visitor.answers("HEAD", "GET")
    assert int(first.headers["content-length"]) == len(second.body)
    assert (first.body, second.path) == (b"", "/b")


async def test_an_answer_without_content_has_neither_length_nor_type() -> None:
    answer = House().visitor().asks("/empty").answer()
    assert answer.status == 204
    assert not {"content-length", "content-type"} & set(answer.headers)


async def test_options_tells_what_a_path_allows() -> None:
    visitor = House().visitor().asks("/post-only", "OPTIONS").asks("*", "OPTIONS").asks("/a", "OPTIONS")
    first, second, third = visitor.answers()
    assert (first.status, first.headers["allow"], first.body) == (204, "GET, HEAD, OPTIONS, POST", b"")
    assert (second.status, second.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
    assert third.status == 200


async def test_connection_close_is_honoured() -> None:
    visitor = House().visitor().asks("/a", headers="Connection: close\r\n")
    assert visitor.answer().headers["connection"] == "close"
    assert visitor.line.closed


async def test_http_1_0_is_closed_unless_it_asks_to_stay() -> None:
    house = House()
    visitor = house.visitor().sends("GET /a HTTP/1.0\r\n\r\n")
    assert visitor.answer().headers["connection"] == "close"
    assert visitor.line.closed
    visitor = house.visitor().sends("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert visitor.answer().headers["connection"] == "keep-alive"
    assert not visitor.is_hung_up_on


async def test_what_is_sent_behind_the_last_request_is_left_alone() -> None:
    house = House()
    visitor = house.visitor()
    visitor.sends("GET /wait/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
    visitor.sends("GET /c HTTP/1.1\r\nHost: x\r\n\r\n")
    house.script.open("a")
    await settled()
    assert visitor.answer().path == "/wait/a"
    assert house.script.started == ["/wait/a"]


@pytest.mark.parametrize("path", ["/problem", "/wait/problem"])
async def test_a_problem_is_told_and_the_connection_lives_on(path: str) -> None:
    house = House()
    house.script.open("problem")
    visitor = house.visitor().asks(path)
    await settled()
    answer = visitor.answer()
    assert answer.body == b'{"code":"conflicting","message":"it conflicts","next":"do not"}'
    assert (answer.status, answer.headers["retry-after"]) == (409, "3")
    assert not visitor.is_hung_up_on


@pytest.mark.parametrize("path", ["/bug", "/wait/bug"])
async def test_a_bug_is_our_fault_and_not_the_clients(path: str, caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.script.open("bug")
    visitor = house.visitor().asks(path)
    await settled()
    answer = visitor.answer()
    assert (answer.status, answer.code) == (500, "internal_error")
    assert answer.headers["x-request-id"] in answer.body.decode()
    assert "ZeroDivisionError" in caplog.text
    assert house.listener.failures == 1
    assert visitor.asks("/a").answers()[1].status == 200


async def test_a_line_break_in_a_header_of_ours_is_a_bug_and_splits_nothing() -> None:
    visitor = House().visitor().asks("/splitting")
    answer = visitor.answer()
    assert answer.status == 500
    assert b"set-cookie" not in visitor.line.written


async def test_a_client_that_is_gone_ends_its_reads_but_not_its_writes() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a").asks("/wait/b", "POST", body=b"x").asks("/wait/c", "HEAD")
    await settled()
    visitor.line.lose()
    await settled()
    assert sorted(house.script.cancelled) == ["/wait/a", "/wait/c"]
    house.script.open("b")
    await settled()
    assert house.listener.budget.taken == 0


async def test_half_a_connection_is_enough_for_an_answer() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a")
    await settled()
    visitor.sends_eof()
    assert not visitor.is_hung_up_on
    house.script.open("a")
    await settled()
    answer = visitor.answer()
    assert (answer.path, answer.headers["connection"]) == ("/wait/a", "close")
    assert visitor.line.closed


async def test_half_a_connection_without_a_request_is_closed() -> None:
    visitor = House().visitor().asks("/a")
    visitor.sends_eof()
    assert visitor.line.closed


async def test_whether_half_a_connection_has_anybody_at_it_is_tried_twice() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a")
    await settled()
    visitor.sends_eof()
    for _ in range(5):
        house.wait(1)
    assert visitor.line.written == b"HTTP/1.1 100 Continue\r\n\r\n" * 2


async def test_a_write_at_half_a_connection_is_not_tried() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a", "POST")
    await settled()
    visitor.sends_eof()
    house.wait(1)
    assert visitor.line.written == b""


async def test_counts_are_kept() -> None:
    house = House()
    visitor = house.visitor().asks("/a").asks("/problem").asks("/bug", "DELETE").sends("nonsense\r\n\r\n")
    listener = house.listener
    assert listener.requests == [0, 0, 1, 0, 2, 1]
    assert (listener.refused, listener.failures, listener.durations.count) == (1, 1, 4)
    assert listener.bytes_out == len(visitor.line.written)
    assert listener.bytes_in > 100
    assert (len(listener.connections), listener.accepted) == (1, 1)


async def test_a_request_is_logged_without_what_may_be_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        House().visitor().asks("/a?token=hush", headers="Authorization: Bearer hush\r\n")
    assert "request method=GET path=/a status=200 ms=0.0 peer=127.0.0.1 caller=-" in caplog.text
    assert "hush" not in caplog.text


async def test_large_answers_are_not_made_for_a_client_that_takes_none() -> None:
    house = House()
    visitor = house.visitor()
    visitor.line.is_taken = False
    visitor.sends(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    assert not visitor.line.reads
    begun = len(house.script.started)
    assert begun < 50
    visitor.line.is_taken = True
    visitor.line.take()
    await settled()
    assert len(parse(visitor.line.written)) == 100
    assert visitor.line.reads
