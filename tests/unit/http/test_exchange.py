"""A connection's patience: with heads, bodies, readers and silence; in time that the tests move."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.http.visitors import House, settled

POST = "POST /a HTTP/1.1\r\nHost: x\r\n"


async def test_a_silent_connection_is_closed_after_a_while() -> None:
    house = House(idle_seconds=75.0)
    visitor = house.visitor().asks("/a")
    told = visitor.line.written
    house.wait(74)
    assert not visitor.is_hung_up_on
    house.wait(2)
    await settled()
    assert visitor.line.closed
    assert visitor.line.written == told
    assert not house.listener.connections


async def test_a_connection_that_sends_nothing_has_no_longer_than_a_head() -> None:
    house = House(idle_seconds=75.0, head_seconds=10.0)
    visitor = house.visitor()
    house.wait(9)
    assert not visitor.is_hung_up_on
    house.wait(2)
    await settled()
    assert visitor.line.closed
    assert visitor.line.written == b""


async def test_each_answer_gives_the_connection_its_time_anew() -> None:
    house = House(idle_seconds=75.0)
    visitor = house.visitor()
    for _ in range(3):
        visitor.asks("/a")
        house.wait(70)
    visitor.asks("/a")
    house.wait(70)
    assert not visitor.is_hung_up_on
    house.wait(10)
    assert visitor.line.closed


async def test_a_request_that_is_being_answered_has_all_the_time_it_needs() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a")
    await settled()
    house.wait(10_000)
    assert not visitor.is_hung_up_on
    house.script.open("a")
    await settled()
    assert visitor.answer().status == 200
    house.wait(1)
    assert not visitor.is_hung_up_on, "it is idle since now"


@pytest.mark.parametrize("trickle", ["", "x"])
async def test_a_head_must_be_whole_in_time_however_busily_it_trickles(trickle: str) -> None:
    house = House(head_seconds=10.0)
    visitor = house.visitor()
    house.wait(9)
    visitor.sends("GET / HTTP/1.1\r\nHost: ")
    for _ in range(10):
        house.wait(1)
        visitor.sends(trickle)
    assert not visitor.is_hung_up_on
    house.wait(1)
    answer = visitor.answer()
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert visitor.is_hung_up_on


async def test_line_breaks_before_a_request_are_not_a_request_and_no_sign_of_life() -> None:
    house = House(idle_seconds=75.0, head_seconds=10.0)
    visitor = house.visitor()
    for _ in range(80):
        if not visitor.is_hung_up_on:
            visitor.sends("\r\n")
            house.wait(1)
    assert visitor.is_hung_up_on


async def test_a_body_must_make_progress() -> None:
    house = House(body_seconds=10.0, body_bytes_per_second_min=100)
    house.script.body_bytes_max = 100_000
    steady = house.visitor().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    slow = house.visitor().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    silent = house.visitor().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    for second in range(40):
        house.wait(1)
        steady.sends(b"x" * 125)
        if not slow.is_hung_up_on:
            slow.sends(b"x" * 50)
        assert silent.is_hung_up_on == (second >= 10)
    assert steady.answer().status == 200
    assert slow.answer().code == silent.answer().code == "request_timeout"
    assert house.listener.budget.taken == 0


async def test_a_client_that_takes_nothing_of_its_answer_is_cut() -> None:
    house = House(unread_seconds=30.0)
    visitor = house.visitor()
    visitor.line.is_taken = False
    visitor.asks("/large")
    house.wait(29)
    assert not visitor.line.aborted
    visitor.line.take(10_000)
    house.wait(29)
    house.wait(29)
    assert not visitor.line.aborted, "it took something in between"
    house.wait(2)
    await settled()
    assert visitor.line.aborted
    assert not house.listener.connections


async def test_no_request_of_a_client_is_read_while_it_takes_nothing() -> None:
    visitor = House().visitor()
    visitor.line.is_taken = False
    visitor.asks("/large")
    assert not visitor.line.reads
    visitor.line.take()
    assert visitor.line.reads


async def test_a_client_that_leaves_its_last_answer_unread_is_cut() -> None:
    house = House(unread_seconds=30.0)
    visitor = house.visitor()
    visitor.line.is_taken = False
    visitor.asks("/a", headers="Connection: close\r\n")
    assert visitor.line.closed
    house.wait(31)
    assert visitor.line.aborted


async def test_an_idle_client_that_leaves_its_answer_unread_is_cut() -> None:
    house = House(idle_seconds=75.0, unread_seconds=30.0)
    visitor = house.visitor()
    visitor.line.is_taken = False
    visitor.asks("/a")
    house.wait(76)
    house.wait(31)
    assert visitor.line.aborted


async def test_only_so_many_connections_are_served_and_the_others_hear_why() -> None:
    house = House(connections_max=2)
    first, second, third = (house.visitor() for _ in range(3))
    third.asks("/a")
    answer = third.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_connections", "1")
    assert third.is_hung_up_on
    assert first.asks("/a").answer().status == second.asks("/a").answer().status == 200
    assert (house.listener.accepted, house.listener.turned_away) == (3, 1)
    third.line.lose()
    second.line.lose()
    assert house.visitor().asks("/a").answer().status == 200


async def test_one_host_may_have_only_so_many_of_them() -> None:
    house = House(connections_per_host_max=1)
    house.visitor("10.0.0.1")
    assert house.visitor("10.0.0.1").asks("/a").answer().status == 503
    assert house.visitor("10.0.0.2").asks("/a").answer().status == 200


async def test_however_many_silent_connections_there_are_a_health_probe_is_answered() -> None:
    house = House(connections_max=10, connections_per_host_max=5, connections_reserved=20)
    silent = [house.visitor(f"10.0.0.{number % 4}") for number in range(1000)]
    for host in ("10.0.0.1", "10.0.0.9"):
        answer = house.visitor(host).asks("/healthy").answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert house.visitor(host).asks("/a").answer().code == "too_many_connections"
        assert house.visitor(host).asks("/a", "POST", body=b"abc").answer().status == 503
    await settled()
    assert house.script.started == ["/healthy"] * 2
    assert len(house.listener.connections) <= 10 + 20
    for visitor in silent:
        visitor.line.lose()
    await settled()
    assert house.visitor("10.0.0.1").asks("/a").asks("/b").answers()[1].status == 200


async def test_above_the_limits_the_newest_connections_are_kept() -> None:
    house = House(connections_max=1, connections_reserved=2)
    _, oldest, second, third = (house.visitor() for _ in range(4))
    assert oldest.line.aborted
    assert [visitor.asks("/healthy").answer().status for visitor in (second, third)] == [200, 200]
    await settled()
    assert len(house.listener.connections) == 1


async def test_reading_that_we_stopped_is_not_held_against_the_client() -> None:
    house = House(answers_owed_max=1, head_seconds=10.0)
    visitor = house.visitor().sends("GET /wait/a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HT")
    await settled()
    house.wait(100)
    assert not visitor.is_hung_up_on
    house.script.open("a")
    await settled()
    house.wait(5)
    visitor.sends("TP/1.1\r\nHost: x\r\n\r\n")
    assert [answer.path for answer in visitor.answers()] == ["/wait/a", "/b"]


async def test_draining_lets_requests_end_and_closes_the_rest() -> None:
    house = House()
    idle = house.visitor().asks("/a")
    busy = house.visitor().asks("/wait/a")
    half = house.visitor().sends("GET / HT")
    await settled()
    house.listener.loop.call_later(0.01, house.script.open, "a")
    await house.listener.drain(30)
    assert idle.line.closed
    assert half.line.closed
    assert busy.answer().headers["connection"] == "close"
    assert not house.listener.connections


async def test_draining_waits_for_writes_whose_client_is_gone() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a", "POST")
    await settled()
    visitor.line.lose()
    house.listener.loop.call_later(0.01, house.script.open, "a")
    async with asyncio.timeout(10):
        await house.listener.drain(30)
    assert house.script.cancelled == []


async def test_draining_does_not_wait_for_ever() -> None:
    house = House()
    visitor = house.visitor().asks("/wait/a")
    await settled()
    await house.listener.drain(0.01)
    await settled()
    assert visitor.line.aborted
    assert house.script.cancelled == ["/wait/a"]
