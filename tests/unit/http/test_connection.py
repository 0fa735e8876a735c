"""HTTP connections: timeouts of heads, bodies, unread responses and idle connections; connection limits; draining."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.http.http_harness import HttpHarness, settled

POST = "POST /a HTTP/1.1\r\nHost: x\r\n"


async def test_an_idle_connection_is_closed_after_the_idle_timeout() -> None:
    harness = HttpHarness(idle_seconds=75.0)
    http_client = harness.http_client().asks("/a")
    written = http_client.line.written
    harness.wait(74)
    assert not http_client.is_hung_up_on
    harness.wait(2)
    await settled()
    assert http_client.line.closed
    assert http_client.line.written == written
    assert not harness.listener.connections


async def test_a_connection_without_any_request_is_closed_after_the_head_timeout() -> None:
    harness = HttpHarness(idle_seconds=75.0, head_seconds=10.0)
    http_client = harness.http_client()
    harness.wait(9)
    assert not http_client.is_hung_up_on
    harness.wait(2)
    await settled()
    assert http_client.line.closed
    assert http_client.line.written == b""


async def test_each_response_restarts_the_idle_timeout() -> None:
    harness = HttpHarness(idle_seconds=75.0)
    http_client = harness.http_client()
    for _ in range(3):
        http_client.asks("/a")
        harness.wait(70)
    http_client.asks("/a")
    harness.wait(70)
    assert not http_client.is_hung_up_on
    harness.wait(10)
    assert http_client.line.closed


async def test_the_idle_timeout_does_not_apply_to_a_request_in_progress() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a")
    await settled()
    harness.wait(10_000)
    assert not http_client.is_hung_up_on
    harness.script.open("a")
    await settled()
    assert http_client.answer().status == 200
    harness.wait(1)
    assert not http_client.is_hung_up_on, "it is idle since now"


@pytest.mark.parametrize("trickle", ["", "x"])
async def test_a_head_that_trickles_in_is_rejected_after_the_head_timeout(trickle: str) -> None:
    harness = HttpHarness(head_seconds=10.0)
    http_client = harness.http_client()
    harness.wait(9)
    http_client.sends("GET / HTTP/1.1\r\nHost: ")
    for _ in range(10):
        harness.wait(1)
        http_client.sends(trickle)
    assert not http_client.is_hung_up_on
    harness.wait(1)
    response = http_client.answer()
    assert (response.status, response.code) == (408, "request_timeout")
    assert http_client.is_hung_up_on


async def test_line_breaks_before_a_request_do_not_extend_the_timeout() -> None:
    harness = HttpHarness(idle_seconds=75.0, head_seconds=10.0)
    http_client = harness.http_client()
    for _ in range(80):
        if not http_client.is_hung_up_on:
            http_client.sends("\r\n")
            harness.wait(1)
    assert http_client.is_hung_up_on


async def test_a_body_below_the_minimum_rate_is_rejected() -> None:
    harness = HttpHarness(body_seconds=10.0, body_bytes_per_second_min=100)
    harness.script.body_bytes_max = 100_000
    steady = harness.http_client().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    slow = harness.http_client().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    silent = harness.http_client().sends(f"{POST}Content-Length: 5000\r\n\r\n")
    for second in range(40):
        harness.wait(1)
        steady.sends(b"x" * 125)
        if not slow.is_hung_up_on:
            slow.sends(b"x" * 50)
        assert silent.is_hung_up_on == (second >= 10)
    assert steady.answer().status == 200
    assert slow.answer().code == silent.answer().code == "request_timeout"
    assert harness.listener.budget.taken == 0


async def test_a_client_that_does_not_read_its_response_is_disconnected() -> None:
    harness = HttpHarness(unread_seconds=30.0)
    http_client = harness.http_client()
    http_client.line.is_taken = False
    http_client.asks("/large")
    harness.wait(29)
    assert not http_client.line.aborted
    http_client.line.take(10_000)
    harness.wait(29)
    harness.wait(29)
    assert not http_client.line.aborted, "it took something in between"
    harness.wait(2)
    await settled()
    assert http_client.line.aborted
    assert not harness.listener.connections


async def test_no_requests_are_read_while_the_client_does_not_read_responses() -> None:
    http_client = HttpHarness().http_client()
    http_client.line.is_taken = False
    http_client.asks("/large")
    assert not http_client.line.reads
    http_client.line.take()
    assert http_client.line.reads


async def test_a_client_that_does_not_read_its_last_response_is_disconnected() -> None:
    harness = HttpHarness(unread_seconds=30.0)
    http_client = harness.http_client()
    http_client.line.is_taken = False
    http_client.asks("/a", headers="Connection: close\r\n")
    assert http_client.line.closed
    harness.wait(31)
    assert http_client.line.aborted


async def test_an_idle_client_that_does_not_read_its_response_is_disconnected() -> None:
    harness = HttpHarness(idle_seconds=75.0, unread_seconds=30.0)
    http_client = harness.http_client()
    http_client.line.is_taken = False
    http_client.asks("/a")
    harness.wait(76)
    harness.wait(31)
    assert http_client.line.aborted


async def test_connections_above_the_limit_get_an_error_response() -> None:
    harness = HttpHarness(connections_max=2)
    first, second, third = (harness.http_client() for _ in range(3))
    third.asks("/a")
    response = third.answer()
    assert (response.status, response.code, response.headers["retry-after"]) == (503, "too_many_connections", "1")
    assert third.is_hung_up_on
    assert first.asks("/a").answer().status == second.asks("/a").answer().status == 200
    assert (harness.listener.accepted, harness.listener.rejected_connections) == (3, 1)
    third.line.lose()
    second.line.lose()
    assert harness.http_client().asks("/a").answer().status == 200


async def test_connections_per_host_are_limited() -> None:
    harness = HttpHarness(connections_per_host_max=1)
    harness.http_client("10.0.0.1")
    assert harness.http_client("10.0.0.1").asks("/a").answer().status == 503
    assert harness.http_client("10.0.0.2").asks("/a").answer().status == 200


async def test_a_health_probe_is_served_above_the_connection_limit() -> None:
    harness = HttpHarness(connections_max=10, connections_per_host_max=5, connections_reserved=20)
    silent = [harness.http_client(f"10.0.0.{number % 4}") for number in range(1000)]
    for host in ("10.0.0.1", "10.0.0.9"):
        response = harness.http_client(host).asks("/healthy").answer()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert harness.http_client(host).asks("/a").answer().code == "too_many_connections"
        assert harness.http_client(host).asks("/a", "POST", body=b"abc").answer().status == 503
    await settled()
    assert harness.script.started == ["/healthy"] * 2
    assert len(harness.listener.connections) <= 10 + 20
    for http_client in silent:
        http_client.line.lose()
    await settled()
    assert harness.http_client("10.0.0.1").asks("/a").asks("/b").answers()[1].status == 200


async def test_the_oldest_connections_above_the_limit_are_aborted() -> None:
    harness = HttpHarness(connections_max=1, connections_reserved=2)
    _, oldest, second, third = (harness.http_client() for _ in range(4))
    assert oldest.line.aborted
    assert [http_client.asks("/healthy").answer().status for http_client in (second, third)] == [200, 200]
    await settled()
    assert len(harness.listener.connections) == 1


async def test_paused_reading_does_not_count_against_the_body_timeout() -> None:
    harness = HttpHarness(pending_responses_max=1, head_seconds=10.0)
    http_client = harness.http_client().sends("GET /wait/a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HT")
    await settled()
    harness.wait(100)
    assert not http_client.is_hung_up_on
    harness.script.open("a")
    await settled()
    harness.wait(5)
    http_client.sends("TP/1.1\r\nHost: x\r\n\r\n")
    assert [response.path for response in http_client.answers()] == ["/wait/a", "/b"]


async def test_draining_completes_requests_and_closes_idle_connections() -> None:
    harness = HttpHarness()
    idle = harness.http_client().asks("/a")
    busy = harness.http_client().asks("/wait/a")
    half = harness.http_client().sends("GET / HT")
    await settled()
    harness.listener.loop.call_later(0.01, harness.script.open, "a")
    await harness.listener.drain(30)
    assert idle.line.closed
    assert half.line.closed
    assert busy.answer().headers["connection"] == "close"
    assert not harness.listener.connections


async def test_draining_waits_for_writes_of_disconnected_clients() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a", "POST")
    await settled()
    http_client.line.lose()
    harness.listener.loop.call_later(0.01, harness.script.open, "a")
    async with asyncio.timeout(10):
        await harness.listener.drain(30)
    assert harness.script.cancelled == []


async def test_draining_ends_at_its_timeout() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a")
    await settled()
    await harness.listener.drain(0.01)
    await settled()
    assert http_client.line.aborted
    assert harness.script.cancelled == ["/wait/a"]
