"""Fuzz the HTTP reader: requests and attacks, mutated, into a connection without a socket.

Manual run: `python -m tests.fuzz.http_reader --inputs 1000000 --jobs 2 --seed 1`. Each input is one connection. The run
fails if the step limit is exceeded (a loop without progress), if an exception is raised, if a response is a 5xx other
than 501 and 505 (which report unsupported features), if resources of a closed connection are not released, or if the
process grows. The failing input is printed, and `--seed` repeats the run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.fuzz.steps import StepLimit
from tests.unit.http.http_harness import HttpHarness

import headrace.http.websocket  # noqa: F401 - imported late by the server, which would count as steps

STEPS, STEPS_PER_BYTE = 2000, 20
GROWTH_BYTES_MAX = 100 << 20
TURNS = 4  # of the event loop, for tasks that a request started
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)

HOST = b"Host: localhost\r\n"
POST = b"POST /topics/orders/messages HTTP/1.1\r\n" + HOST
SOCKET = b"GET /socket HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
SOCKET += b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n"

REQUESTS = (
    b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /topics?prefix=a%2Fb&limit=100 HTTP/1.1\r\n" + HOST + b"Accept: */*\r\nUser-Agent: curl/8.5.0\r\n\r\n",
    b"HEAD /docs HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    b"DELETE /topics/orders HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    POST + b'Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}',
    POST + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n",
    POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    POST + b"X-Token: none\r\nContent-Length: 3\r\n\r\nabc",
    POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nContent-Length: 3\r\n\r\nabc",
    b"GET http://localhost:8080/topics HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /stream HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n",
    SOCKET + b"\x81\x82\0\0\0\0hi\x89\x80\0\0\0\0\x88\x82\0\0\0\0\x03\xe8",
)
ATTACKS = (
    b"CONNECT http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    POST + b"Content-Length: 900\r\n\r\n" + b"x" * 899,
    POST + b"X-Token: none\r\nContent-Length: 16777216\r\n\r\n" + b"x" * 100,
    POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc",
    b"GET http://h?/livez HTTP/1.1\r\nHost: h\r\n\r\n",
    SOCKET + b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 60,
    POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 300,
    b"GET /subscriptions/s/messages HTTP/1.1\r\nHost: rebind.evil.example\r\nSec-Fetch-Site: cross-site\r\n\r\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
CORPUS = REQUESTS + ATTACKS
TOKENS = (
    *(b"CONNECT", b"GET", b"POST", b" HTTP/1.0\r\n", b" HTTP/1.1\r\n", b" HTTP/2.0\r\n", b"\r\n", b"\r\n\r\n", b"\n"),
    *(b"http://x/", b"http://x?", b"*", b"/socket", b"/stream", b"%zz", b"\0", b"\xff", b" ", b"\t", b":", b","),
    *(b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n", b"Upgrade: \r\n", HOST),
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n", b"X-Token: none\r\n"),
    *(b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"ffffffff\r\n", b"x" * 1100),
)


class Report(NamedTuple):
    inputs: int
    statuses: Counter[int]
    steps_max: int
    grown_bytes: int


def mutated(chance: random.Random) -> bytes:
    """Return one to three entries of the corpus with up to six mutations."""
    data = b"".join(chance.choices(CORPUS, k=chance.choice((1, 1, 1, 2, 3))))
    for _ in range(chance.randint(0, 6)):
        place = chance.randint(0, len(data))
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:place] + chance.randbytes(chance.randint(1, 4)) + data[place + chance.randint(0, 4) :]
        elif kind == 1:
            data = data[:place] + chance.choice(TOKENS) + data[place:]
        elif kind == 2:
            data = data[:place] + chance.choice(TOKENS) + data[place + chance.randint(1, 20) :]
        elif kind == 3:
            data = data[:place] + data[place + chance.randint(1, 40) :]
        elif kind == 4:
            data = data[:place] + data[max(place - 60, 0) :][:2000]
        else:
            data = data[:place]
    return data


async def check(harness: HttpHarness, data: bytes, cut: int, statuses: Counter[int]) -> int:
    """Send `data` in two pieces on one connection; return the maximum number of steps."""
    http_client = harness.http_client()
    steps = 0
    for piece in (data[:cut], data[cut:]):
        if piece and http_client.line.reads and not http_client.line.closed:
            with StepLimit(STEPS + STEPS_PER_BYTE * len(piece)) as limit:
                http_client.exchange.data_received(piece)
            steps = max(steps, limit.steps)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    if not http_client.line.closed:
        http_client.sends_eof()
    harness.wait(0.001)
    http_client.line.lose()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for status in map(int, _STATUS.findall(http_client.line.written)):
        assert status < 500 or status in (501, 505), http_client.line.written
        statuses[status] += 1
    assert harness.listener.budget.taken == 0
    assert not harness.listener.connections
    assert harness.listener.failures == 0
    return steps


def http(data: bytes) -> None:
    """The target for Atheris and Hypothesis: the first byte determines where the input is split."""
    if data:
        asyncio.run(_check_alone(data[1:], data[0] * 4))


async def _check_alone(data: bytes, cut: int) -> None:
    await check(HttpHarness(), data, cut, Counter())


async def fuzz(seed: int, inputs: int) -> Report:
    chance = random.Random(seed)
    statuses: Counter[int] = Counter()
    steps_max, before = 0, 0
    harness = HttpHarness()
    for number in range(inputs):
        data = mutated(chance)
        cut = chance.randint(0, len(data))
        try:
            steps_max = max(steps_max, await check(harness, data, cut, statuses))
        except BaseException:
            sys.stderr.write(f"seed {seed}, input {number}, cut at {cut}: {data!r}\n")
            raise
        harness.script.requests.clear()
        harness.script.started.clear()
        harness.script.cancelled.clear()
        if number == min(inputs // 10, 10_000):
            before = _rss_bytes()  # one-time imports and caches are complete
    return Report(inputs, statuses, steps_max, _rss_bytes() - before)


def _rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(seed: int, inputs: int) -> Report:
    """Run the fuzzer; messages of the loop, such as an unretrieved exception, are failures."""
    complaints: list[object] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        report = runner.run(fuzz(seed, inputs))
    assert complaints == []
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    share = -(-options.inputs // options.jobs)
    with ProcessPoolExecutor(options.jobs) as pool:
        reports = list(pool.map(run, range(options.seed, options.seed + options.jobs), [share] * options.jobs))
    statuses = sum((report.statuses for report in reports), Counter[int]())
    grown = max(report.grown_bytes for report in reports)
    sys.stdout.write(
        f"{sum(report.inputs for report in reports)} inputs in {time.monotonic() - began:.0f} s, "
        f"at most {max(report.steps_max for report in reports)} steps for a piece, memory grew by {grown >> 10} KiB, "
        f"answers {dict(sorted(statuses.items()))}\n"
    )
    return 1 if grown > GROWTH_BYTES_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
