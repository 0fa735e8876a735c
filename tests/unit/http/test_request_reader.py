"""The request reader: limits, split input, and rejection of ambiguous requests."""

from __future__ import annotations

import pytest
from tests.fuzz.steps import StepLimit
from tests.unit.http.http_harness import HttpHarness, HttpTestClient, settled

POST = "POST /a HTTP/1.1\r\nHost: x\r\n"
CHUNKED = f"{POST}Transfer-Encoding: chunked\r\n\r\n"


def refused(http_client: HttpTestClient) -> tuple[int, str]:
    """Return status and code of the only response, after which the connection must end."""
    response = http_client.answer()
    assert http_client.is_hung_up_on
    assert response.headers["connection"] == "close"
    return response.status, response.code


async def test_a_request_that_arrives_byte_by_byte_is_parsed() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    for (
        byte
    ) in b"POST /some/path?x=y HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: x\r\n\r\n":
        http_client.sends(bytes([byte]))
    assert [response.path for response in http_client.answers()] == ["/some/path", "/b"]
    assert (harness.script.requests[0].body, harness.script.requests[0].query) == (b"abc", {"x": "y"})


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", {}),
        ("/a?", "/a", {}),
        ("/a?x", "/a", {"x": ""}),
        ("/a?x=&y=1&&z", "/a", {"x": "", "y": "1", "z": ""}),
        ("/a?x=a%26b%3Dc", "/a", {"x": "a&b=c"}),
        ("/a?x=%ff%zz", "/a", {"x": "\ufffd%zz"}),
        ("/a?x=1#y", "/a", {"x": "1"}),
        ("http://example.org:8080/a?x=1", "/a", {"x": "1"}),
        ("http://example.org", "/", {}),
        ("http://example.org?/a", "/", {"/a": ""}),
        ("//a/../b", "//a/../b", {}),
    ],
)
async def test_request_targets_are_parsed(target: str, path: str, query: dict[str, str]) -> None:
    harness = HttpHarness()
    harness.http_client().asks(target)
    assert (harness.script.requests[0].path, harness.script.requests[0].query) == (path, query)


@pytest.mark.parametrize(
    "garbage",
    [
        "\0\0\0\x20\0\x03\0\x01",
        "\x16\x03\x01\x02\0\x01",  # a TLS client
        "GET\r\n\r\n",
        "NONSENSE / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        f"{POST}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        f"{POST}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        f"{POST}Content-Length: 3, 3\r\n\r\nabc",
        f"{POST}Content-Length: -3\r\n\r\nabc",
        f"{POST}Content-Length: +3\r\n\r\nabc",
        f"{POST}Content-Length: 0x3\r\n\r\nabc",
        f"{POST}Content-Length: \r\n\r\nabc",
        f"{POST}Content-Length: 99999999999999999999\r\n\r\nabc",
        f"{POST}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"{POST}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        f"{POST}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        f"{CHUNKED}3;\nabc\r\n0\r\n\r\n",
        f"{CHUNKED}-3\r\nabc\r\n0\r\n\r\n",
        f"{CHUNKED}3 \r\nabc\r\n0\r\n\r\n",
        f"{CHUNKED}3\r\nabcd\r\n0\r\n\r\n",
        f"{CHUNKED}fffffffffffffffff\r\nabc",
    ],
)
async def test_an_ambiguous_or_malformed_request_ends_the_connection(garbage: str) -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(garbage)
    assert refused(http_client) == (400, "malformed_request")
    assert harness.script.started == []
    assert harness.listener.refused == 1


@pytest.mark.parametrize("target", ["http://x/", "http://x/a", "example.org:443", "/a"])
async def test_connect_is_rejected(target: str) -> None:
    harness = HttpHarness()
    with StepLimit(5000):
        http_client = harness.http_client().sends(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert refused(http_client)[0] in (400, 405)
    assert harness.script.started == []


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip, CHUNKED", "chunked, chunked", "identity, chunked"])
async def test_transfer_codings_other_than_chunked_are_rejected(coding: str) -> None:
    http_client = HttpHarness().http_client().sends(f"{POST}Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n")
    assert refused(http_client)[0] in (400, 501)


async def test_chunked_bodies_are_rejected_in_http_1_0() -> None:
    http_client = HttpHarness().http_client().sends("POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert refused(http_client)[0] == 501


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/0.9", "HTTP/3.0", "HTTP/1.2"])
async def test_other_http_versions_are_rejected(version: str) -> None:
    http_client = HttpHarness().http_client().sends(f"GET / {version}\r\nHost: x\r\n\r\n")
    assert refused(http_client)[0] in (400, 505)


async def test_responses_before_a_malformed_request_are_sent_first() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a").sends("garbage\r\n\r\n")
    assert http_client.answers() == []
    harness.script.open("a")
    await settled()
    assert [response.status for response in http_client.answers()] == [200, 400]
    assert http_client.is_hung_up_on


async def test_an_error_has_the_id_of_its_own_request() -> None:
    mine = "X-Request-Id: mine\r\n"
    good, bad = HttpHarness().http_client().asks("/a", headers=mine).sends("garbage\r\n\r\n").answers()
    assert good.headers["x-request-id"] == "mine"
    assert bad.headers["x-request-id"] != "mine"
    too_large = HttpHarness().http_client().sends(f"{POST}{mine}Content-Length: 9999\r\n\r\n").answer()
    assert too_large.headers["x-request-id"] == "mine"


async def test_input_after_an_error_is_discarded_until_the_linger_timeout() -> None:
    harness = HttpHarness(linger_seconds=2.0)
    http_client = harness.http_client().sends(f"{POST}Content-Length: 100000\r\n\r\n")
    assert refused(http_client) == (413, "body_too_large")
    http_client.sends(b"x" * 100_000)
    assert not http_client.line.closed
    harness.wait(1)
    assert not http_client.line.closed
    harness.wait(1.5)
    assert http_client.line.closed


async def test_a_content_length_above_the_limit_is_rejected_before_the_body_is_read() -> None:
    harness = HttpHarness()
    assert refused(harness.http_client().sends(f"{POST}Content-Length: 1001\r\n\r\n")) == (413, "body_too_large")
    assert harness.http_client().asks("/a", "POST", body=b"x" * 1000).answer().status == 200
    assert harness.listener.budget.taken == 0


async def test_a_chunked_body_is_rejected_when_it_exceeds_the_limit() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(CHUNKED)
    for _ in range(10):
        http_client.sends("64\r\n" + "x" * 100 + "\r\n")
    assert http_client.answers() == []
    http_client.sends("1\r\nx\r\n")
    assert refused(http_client) == (413, "body_too_large")
    assert harness.listener.budget.taken == 0


async def test_chunks_are_joined_and_trailers_are_ignored() -> None:
    harness = HttpHarness()
    http_client = (
        harness.http_client()
        .sends(f"{CHUNKED}3;why=not\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\nHost: y\r\n\r\n")
        .asks("/b")
    )
    assert [response.path for response in http_client.answers()] == ["/a", "/b"]
    first, second = harness.script.requests
    assert first.body == b"abcde"
    assert "x-late" not in first.headers
    assert first.headers["host"] == "x"
    assert set(second.headers) == {"host"}


async def test_chunks_with_too_much_framing_are_rejected() -> None:
    harness = HttpHarness()
    harness.script.body_bytes_max = 10_000_000
    http_client = harness.http_client().sends(CHUNKED)
    for _ in range(100):
        if http_client.is_hung_up_on:
            break
        http_client.sends("1;" + "x" * 1000 + "\r\nx\r\n")
    assert refused(http_client) == (400, "malformed_request")


async def test_chunks_of_one_byte_are_accepted() -> None:
    harness = HttpHarness()
    harness.script.body_bytes_max = 100_000
    http_client = harness.http_client().sends(CHUNKED + "1\r\nx\r\n" * 50_000 + "0\r\n\r\n")
    assert http_client.answer().status == 200
    assert len(harness.script.requests[0].body) == 50_000


async def test_a_stalled_body_is_rejected_even_if_it_was_fast_before() -> None:
    harness = HttpHarness(body_seconds=10.0, body_bytes_per_second_min=4096)
    harness.script.body_bytes_max = 16 << 20
    http_client = (
        harness.http_client().sends(f"{POST}Content-Length: {16 << 20}\r\n\r\n").sends(b"x" * ((16 << 20) - 1))
    )
    harness.wait(9)
    assert not http_client.is_hung_up_on
    harness.wait(2)
    assert refused(http_client) == (408, "request_timeout")
    assert harness.listener.budget.taken == 0


async def test_a_body_at_the_minimum_rate_is_accepted() -> None:
    harness = HttpHarness(body_seconds=10.0, body_bytes_per_second_min=10)
    http_client = harness.http_client().sends(f"{POST}Content-Length: 1000\r\n\r\n")
    for _ in range(99):
        harness.wait(1)
        http_client.sends(b"x" * 10)
    harness.wait(9)
    assert http_client.sends(b"x" * 10).answer().status == 200
    slower = harness.http_client().sends(f"{POST}Content-Length: 1000\r\n\r\n")
    for _ in range(25):
        harness.wait(1)
        if not slower.is_hung_up_on:
            slower.sends(b"x" * 5)
    assert refused(slower) == (408, "request_timeout")


async def test_the_body_budget_of_one_host_leaves_room_for_others() -> None:
    harness = HttpHarness(bodies_bytes_max=2000, bodies_per_host_bytes_max=1000)
    greedy = [harness.http_client("10.0.0.1").sends(f"{POST}Content-Length: 900\r\n\r\n") for _ in range(8)]
    for http_client in greedy:
        http_client.sends(b"x" * 899)
    assert [http_client.is_hung_up_on for http_client in greedy] == [False] + [True] * 7
    assert refused(greedy[1]) == (503, "too_busy")
    assert harness.http_client("10.0.0.2").asks("/a", "POST", body=b"x" * 1000).answer().status == 200
    greedy[0].line.lose()
    assert harness.http_client("10.0.0.1").asks("/a", "POST", body=b"x" * 1000).answer().status == 200
    assert harness.listener.budget.taken == 0


UNAUTHORIZED = f"{POST}X-Token: none\r\n"


async def test_an_unauthorized_client_gets_its_error_before_its_body_is_read() -> None:
    harness = HttpHarness()
    harness.script.body_bytes_max = 16 << 20
    http_client = harness.http_client().sends(f"{UNAUTHORIZED}Content-Length: {16 << 20}\r\n\r\n")
    assert refused(http_client) == (401, "token_unknown")
    in_chunks = harness.http_client().sends(f"{UNAUTHORIZED}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
    assert refused(in_chunks) == (401, "token_unknown")
    assert harness.listener.budget.taken == 0
    assert harness.script.started == []


async def test_an_unauthorized_client_gets_no_100_continue() -> None:
    http_client = HttpHarness().http_client().sends(f"{UNAUTHORIZED}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert refused(http_client) == (401, "token_unknown")


async def test_a_short_unauthorized_body_is_dropped_and_the_connection_continues() -> None:
    harness = HttpHarness()
    harness.script.body_bytes_max = 1 << 20
    http_client = harness.http_client().sends(f"{UNAUTHORIZED}Content-Length: 65536\r\n\r\n").sends(b"x" * 65_535)
    assert harness.listener.budget.taken == 0
    assert http_client.answers() == []
    http_client.sends(b"x").asks("/b")
    assert [response.status for response in http_client.answers()] == [401, 200]
    assert harness.script.started == ["/b"]


async def test_a_body_is_not_read_while_its_token_is_checked() -> None:
    harness = HttpHarness()
    harness.script.body_bytes_max = 1 << 20
    later = f"{POST}X-Token: later\r\nContent-Length: 100000\r\n\r\n"
    http_client = harness.http_client().sends(later + "x" * 50_000)
    assert not http_client.line.reads
    assert harness.listener.budget.taken < 1024
    harness.wait(100)
    assert not http_client.is_hung_up_on, "the client is not to blame"
    harness.script.open("token")
    await settled()
    assert harness.listener.budget.taken == 50_000
    assert http_client.sends(b"x" * 50_000).answer().status == 200
    assert harness.listener.budget.taken == 0


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("Content-Length: 3\r\n\r\na", "bc"),
        ("Content-Length: 3\r\n\r\n", "abc"),
        ("Content-Length: 3\r\nExpect: 100-continue\r\n\r\n", "abc"),
        ("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n"),
    ],
)
async def test_a_body_completed_after_the_token_was_revoked_is_not_processed(head: str, rest: str) -> None:
    for is_valid, status in ((True, 200), (False, 401)):
        harness = HttpHarness()
        http_client = harness.http_client().sends(f"{POST}X-Token: revocable\r\n{head}")
        harness.script.is_valid = is_valid
        harness.clock.seconds += 1
        http_client.sends(rest)
        answers = [response for response in http_client.answers() if response.status != 100]
        assert [response.status for response in answers] == [status]
        assert len(harness.script.requests) == (1 if is_valid else 0)
        assert harness.listener.budget.taken == 0
        assert not http_client.is_hung_up_on


async def test_a_body_received_with_its_head_is_admitted_once() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(f"{POST}Content-Length: 3\r\n\r\nabc").asks("/b")
    assert [response.status for response in http_client.answers()] == [200, 200]
    assert len(harness.script.admitted) == 2


async def test_a_late_failure_of_the_token_check_ends_the_request() -> None:
    harness = HttpHarness()
    harness.script.is_valid = False
    harness.script.body_bytes_max = 1 << 20
    later = f"{POST}X-Token: later\r\nContent-Length: "
    large = harness.http_client().sends(f"{later}100000\r\n\r\n" + "x" * 50_000)
    short = harness.http_client().sends(f"{later}3\r\n\r\na")
    whole = harness.http_client().sends(f"{later}3\r\n\r\nabc")
    gone = harness.http_client().sends(f"{later}3\r\n\r\na")
    gone.line.lose()
    await settled()
    harness.script.open("token")
    await settled()
    assert refused(large) == (401, "token_unknown")
    assert [response.status for response in short.sends("bc").asks("/b").answers()] == [401, 200]
    assert whole.answer().status == 401
    assert harness.listener.budget.taken == 0
    assert harness.script.started == ["/b"]


async def test_a_100_continue_follows_a_successful_token_check() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(
        f"{POST}X-Token: later\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    )
    assert http_client.line.written == b""
    harness.script.open("token")
    await settled()
    assert http_client.line.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert http_client.sends("abc").answers()[-1].status == 200


async def test_an_exception_in_the_token_check_is_a_500() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(f"{POST}X-Token: bug\r\nContent-Length: 3\r\n\r\nabc")
    assert refused(http_client) == (500, "internal_error")
    assert harness.http_client().asks("/a", headers="X-Token: bug\r\n").answer().status == 500
    assert harness.listener.failures == 2


async def test_bodies_above_the_total_budget_are_rejected() -> None:
    harness = HttpHarness(bodies_bytes_max=1500)
    first = harness.http_client().sends(f"{POST}Content-Length: 1000\r\n\r\n").sends(b"x" * 999)
    second = harness.http_client().sends(f"{POST}Content-Length: 600\r\n\r\n").sends(b"x" * 600)
    assert refused(second) == (503, "too_busy")
    assert second.answer().headers["retry-after"] == "1"
    assert first.sends(b"x").answer().status == 200
    assert harness.listener.budget.taken == 0
    assert harness.http_client().asks("/a", "POST", body=b"x" * 600).answer().status == 200


async def test_a_body_counts_against_the_budget_until_its_request_ends() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/wait/a", "POST", body=b"abc")
    unfinished = harness.http_client().sends(f"{POST}Content-Length: 10\r\n\r\nabcd")
    assert harness.listener.budget.taken == 7
    unfinished.line.lose()
    assert harness.listener.budget.taken == 3
    harness.script.open("a")
    await settled()
    assert harness.listener.budget.taken == 0
    assert http_client.answer().status == 200


async def test_a_url_above_the_limit_is_rejected() -> None:
    harness = HttpHarness(url_bytes_max=100)
    assert harness.http_client().asks("/" + "x" * 99).answer().status == 200
    assert refused(harness.http_client().asks("/" + "x" * 100)) == (414, "url_too_long")
    http_client = HttpHarness(url_bytes_max=4000).http_client().sends("GET /")
    for _ in range(10):
        if not http_client.is_hung_up_on:
            http_client.sends("x" * 500)
    assert refused(http_client) == (414, "url_too_long")


async def test_a_head_above_the_limit_is_rejected_regardless_of_splitting() -> None:
    harness = HttpHarness(head_bytes_max=4000)
    whole = harness.http_client().sends("GET / HTTP/1.1\r\nHost: x\r\nX: " + "x" * 6000)
    assert refused(whole) == (431, "headers_too_large")
    in_pieces = harness.http_client().sends("GET / HTTP/1.1\r\n")
    for number in range(100):
        if not in_pieces.is_hung_up_on:
            in_pieces.sends(f"X-{number}: {'x' * 100}\r\n")
    assert refused(in_pieces) == (431, "headers_too_large")


async def test_the_head_limit_applies_to_each_request_separately() -> None:
    http_client = HttpHarness(head_bytes_max=4000).http_client()
    for _ in range(5):
        http_client.asks("/a", headers=f"X: {'x' * 3000}\r\n")
    assert [response.status for response in http_client.answers()] == [200] * 5


async def test_too_many_headers_are_rejected() -> None:
    harness = HttpHarness(headers_max=10)
    assert harness.http_client().asks("/a", headers="".join(f"X-{n}: 1\r\n" for n in range(9))).answer().status == 200
    assert refused(harness.http_client().asks("/a", headers="".join(f"X-{n}: 1\r\n" for n in range(10)))) == (
        431,
        "too_many_headers",
    )
    assert refused(harness.http_client().asks("/a", headers="X: 1\r\n" * 10))[0] == 431


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(f"{POST}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert http_client.line.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    http_client.sends("abc")
    assert harness.script.requests[0].body == b"abc"
    assert http_client.answers()[-1].status == 200
    again = harness.http_client().sends(f"{POST}Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
    assert again.answer().status == 200, "its body was there: nothing to tell"


async def test_a_body_above_the_limit_gets_no_100_continue() -> None:
    http_client = HttpHarness().http_client().sends(f"{POST}Expect: 100-continue\r\nContent-Length: 3000\r\n\r\n")
    assert refused(http_client)[0] == 413


async def test_other_expectations_are_rejected() -> None:
    http_client = HttpHarness().http_client().sends(f"{POST}Expect: miracles\r\nContent-Length: 3\r\n\r\n")
    assert refused(http_client) == (417, "unknown_expectation")


async def test_a_100_continue_follows_pending_responses() -> None:
    harness = HttpHarness()
    http_client = (
        harness.http_client().asks("/wait/a").sends(f"{POST}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    )
    assert http_client.line.written == b""
    harness.script.open("a")
    await settled()
    assert http_client.line.written.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.0", "h2c, websocket2", ""])
async def test_an_upgrade_to_another_protocol_is_ignored(protocol: str) -> None:
    harness = HttpHarness()
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AA\r\n"
    http_client = harness.http_client().asks("/a?x=1", "POST", offer, b"abc").asks("/b", headers=offer).asks("/c")
    assert [response.path for response in http_client.answers()] == ["/a", "/b", "/c"]
    assert (harness.script.requests[0].body, harness.script.requests[0].query) == (b"abc", {"x": "1"})


@pytest.mark.parametrize(
    "offer",
    [
        "POST /a HTTP/1.1\r\nHost: x\r\n{}Content-Length: 3\r\n\r\nabc",
        "POST /a HTTP/1.1\r\nHost: x\r\n{}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: x\r\n{}Content-Length: 3\r\n\r\nabc",
    ],
)
async def test_an_upgrade_request_with_a_body_keeps_its_body(offer: str) -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends(offer.format("Connection: Upgrade\r\nUpgrade: websocket\r\n")).asks("/b")
    assert [response.path for response in http_client.answers()] == ["/a", "/b"]
    assert harness.script.requests[0].body == b"abc"


async def test_an_http_1_0_request_with_an_upgrade_remains_http_1_0() -> None:
    http_client = HttpHarness().http_client().sends("GET /a HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert (http_client.answer().status, http_client.answer().headers["connection"]) == (200, "close")


async def test_a_thousand_ignored_upgrades_are_a_thousand_requests() -> None:
    harness = HttpHarness()
    http_client = harness.http_client()
    http_client.sends("GET /a HTTP/1.1\r\nHost:\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" * 1000)
    for _ in range(20):
        await settled()
    assert len(http_client.answers()) == 1000


async def test_an_exception_in_body_limit_is_a_500() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().asks("/bug", "POST", body=b"abc")
    assert refused(http_client) == (500, "internal_error")
    assert harness.listener.failures == 1


async def test_an_incomplete_request_gets_an_error() -> None:
    harness = HttpHarness()
    for piece in ("GET / HT", "GET / HTTP/1.1\r\nHost: x\r\n", f"{POST}Content-Length: 3\r\n\r\nab"):
        http_client = harness.http_client().sends(piece)
        http_client.sends_eof()
        assert http_client.answer().code == "incomplete_request"
        assert http_client.line.closed


async def test_reading_stops_while_too_many_responses_are_pending() -> None:
    harness = HttpHarness(pending_responses_max=4)
    http_client = harness.http_client()
    http_client.sends("".join(f"GET /wait/{n} HTTP/1.1\r\nHost: x\r\nX: {'x' * 500}\r\n\r\n" for n in range(20)))
    assert not http_client.line.reads
    assert len(harness.script.started) <= 6
    for number in range(20):
        harness.script.open(str(number))
        await settled()
    assert [response.path for response in http_client.answers()] == [f"/wait/{number}" for number in range(20)]
    assert http_client.line.reads


async def test_a_client_with_many_pipelined_requests_does_not_starve_others() -> None:
    harness = HttpHarness()
    http_client = harness.http_client().sends("GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
    assert len(harness.script.started) < 100
    await settled()
    await settled()
    assert len(http_client.answers()) == 300


@pytest.mark.parametrize("path", ["/stream", "/socket", "/wait/a", "/problem"])
@pytest.mark.parametrize("behind", [0, 60])
async def test_responses_to_pipelined_requests_of_all_kinds_are_in_order(path: str, behind: int) -> None:
    harness = HttpHarness()
    harness.script.open("a")
    harness.script.chunks.put_nowait(None)
    one = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    http_client = harness.http_client().sends(one * 60 + f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" + one * behind)
    for _ in range(10):
        await settled()
    statuses = [response.status for response in http_client.answers()]
    assert len(statuses) == 61 + behind
    assert set(statuses[:60] + statuses[61:]) == {200}


async def test_the_last_pipelined_request_closes_the_connection() -> None:
    harness = HttpHarness()
    one = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    http_client = harness.http_client().sends(
        one * 100 + "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + one * 5
    )
    for _ in range(10):
        await settled()
    assert len(http_client.answers()) == 101
    assert http_client.line.closed
